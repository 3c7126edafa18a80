"""Suspending a run, and waking it: both one fenced transaction, both tested against the answer under the lock."""

from __future__ import annotations

from uuid import UUID

from agents import failpoints
from agents.models import Submission
from agents.recovery.classify import Facts
from agents.states import State, Wait, sources
from maintenance.ports import REPAIRED, Work


def put_to_sleep(submission_id: UUID, wait: Wait, name: str, wake_at: object) -> bool:
    """Moves the row to `suspended`, in the caller's fenced transaction; `False` if its state does not allow it."""
    row = Submission.objects.filter(pk=submission_id, state__in=sources("suspend"))
    return bool(row.update(state=State.SUSPENDED, waits_for=wait, waits_on=name, wake_at=wake_at))


def wake(work: Work, facts: Facts) -> str:
    """What it waited for is there: the next attempt goes on and finds it. Writes no record: the answer is one."""
    failpoints.hit(failpoints.WAKE_BEFORE, work.thread_id)
    # Race closed: a takeover since recovery read the answer. An answer cannot go away, so it is not read again.
    with work.fenced():
        row = Submission.objects.filter(pk=facts.submission_id, state__in=sources("wake"))
        row.update(state=State.INPUT_APPLIED, waits_for="", waits_on="", wake_at=None)
    failpoints.hit(failpoints.WAKE_AFTER, work.thread_id)
    return REPAIRED
