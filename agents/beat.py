"""The row that drives the periodic task of agents when django-celery-beat is installed."""

from __future__ import annotations

from datetime import timedelta

from maintenance.beat import PeriodicRow

OBLIGATIONS = "agents.obligations"
"""Row and Celery task."""


def periodic_rows() -> tuple[PeriodicRow, ...]:
    """Return the rows of agents that a new database gets."""
    return (PeriodicRow(OBLIGATIONS, timedelta(minutes=1), "Counts what is owed, for the metrics."),)
