"""What tests of agents ask again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agents import api
from agents.log import Record, export
from agents.models import Attempt, LogRecord
from agents.settlement import Settlement
from maintenance.passes import Result
from maintenance.testing import run_due_passes, travel

agents_database = pytest.mark.django_db(transaction=True, available_apps=["maintenance", "agents"])
"""Transactions that really commit; afterwards only the tables of the two apps are emptied."""

LEASE = timedelta(seconds=31)
"""A little more than the time a lease lives without renewal."""


def families(thread_id: str = "t") -> list[str]:
    """The families of the thread's log, in order."""
    return [record.family for record in log(thread_id)]


def log(thread_id: str = "t") -> list[Record]:
    """The whole log of the thread."""
    return list(export(thread_id))


def settled(receipt: api.Receipt) -> Settlement:
    """The settlement, which must be there."""
    found = api.settlement(receipt)
    assert found is not None
    return found


def run() -> list[Result]:
    """Runs passes until nothing is due."""
    return run_due_passes()


def run_after_a_death() -> list[Result]:
    """Waits out the lease of a process that died, then runs passes until nothing is due."""
    travel(LEASE)
    return run_due_passes()


def endings() -> list[str]:
    """How the attempts ended, in the order in which they began."""
    return list(Attempt.objects.order_by("id").values_list("ending", flat=True))


def settlements_in_log(thread_id: str = "t") -> int:
    return LogRecord.objects.filter(thread_id=thread_id, family="submission-settled").count()


def sound(thread_id: str = "t", *, all_settled: bool = True) -> Any:
    """Asserts that the thread verifies; returns the report."""
    report = api.verify(thread_id, all_settled=all_settled)
    assert report.ok, report.failed
    return report
