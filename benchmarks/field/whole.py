"""Contestant (c): the whole path. `agents.submit`, a trivial handler, the log with its digest chain, the settlement.

The row that a job appends is the settlement's record in its thread's log. Afterwards every thread is verified.
"""

from __future__ import annotations

from agents.api import submit, verify
from agents.models import Submission
from agents.states import State
from benchmarks.durable_agents import APPEND
from benchmarks.field.contest import all_acknowledged

PORTS = {"RUNTIME": "agents.runtime.ThreadRuntime", "LEDGER": "agents.runtime.ThreadLedger"}


def enqueue(entity: str, number: int) -> None:
    """Accepts one job: durable when this returns."""
    submit(entity, APPEND, number)


def is_done(jobs: int) -> bool:
    """Whether every job is settled and every thread acknowledged."""
    return Submission.objects.filter(state=State.SETTLED).count() == jobs and all_acknowledged()


def verify_all() -> None:
    """Raises if the log or the rows of a thread are not sound, or if it owes something."""
    for thread_id in Submission.objects.values_list("thread_id", flat=True).distinct():
        report = verify(thread_id, all_settled=True)
        if not report.ok:
            message = f"thread {thread_id} is not sound: {report.failed}"
            raise RuntimeError(message)
