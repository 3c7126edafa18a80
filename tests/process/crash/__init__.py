"""The crash matrix: a real process dies at every failpoint, others go on, and what was accepted ends once."""
