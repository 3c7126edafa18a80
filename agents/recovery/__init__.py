"""Recovery: evidence from the log, one pure decision for each submission, its execution."""
