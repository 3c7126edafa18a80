"""Whether what a suspended submission waits for is there: read from the rows themselves.

The same test decides at three places: in the transaction that suspends (which then does not), in recovery (which
then wakes), and in finish (which then keeps the alarm). So no answer can slip between two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from agents.models import Approval, Event
from agents.states import Wait
from maintenance import clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one submission waits for, as its row says."""

    submission_id: UUID
    thread_id: str
    wait: Wait
    name: str
    """Which approval, event or timer."""
    wake_at: datetime | None


def is_there(question: Question) -> bool:
    """Whether the answer has come, or the wait's own time. Run it where nothing can commit in between."""
    if question.wake_at is not None and question.wake_at <= clock.now():
        return True
    match question.wait:
        case Wait.APPROVAL:
            asked = Approval.objects.filter(submission_id=question.submission_id, name=question.name)
            return asked.exclude(decision="").exists()
        case Wait.EVENT:
            return Event.objects.filter(thread_id=question.thread_id, name=question.name, taken_by=None).exists()
        case Wait.TIMER | Wait.RETRY | Wait.CHILD:
            return False
