"""The main job of the README: audit the Python distributions of this environment, durably."""
