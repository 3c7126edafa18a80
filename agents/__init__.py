"""Durable agent threads: submissions, the canonical log, attempts, recovery, drivers."""
