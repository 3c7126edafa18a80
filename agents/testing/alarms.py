"""Whether a thread will come back by itself, and when."""

from __future__ import annotations

from datetime import datetime, timedelta

from maintenance import clock
from maintenance.models import ThreadMaintenance


def assert_alarm(thread_id: str, *, within: float | timedelta | None = None) -> datetime:
    """The moment at which the thread is due; `AssertionError` if none is set, or none within so many seconds."""
    due_at = _due_at(thread_id)
    if due_at is None:
        message = f"thread {thread_id!r} has no alarm: nothing brings it back but a new submission or an answer"
        raise AssertionError(message)
    left = due_at - clock.now()
    limit = within if within is None or isinstance(within, timedelta) else timedelta(seconds=within)
    if limit is not None and left > limit:
        message = f"the alarm of thread {thread_id!r} is {left.total_seconds():.3f} s ahead, not within {limit}"
        raise AssertionError(message)
    return due_at


def refute_alarm(thread_id: str) -> None:
    """Asserts that the thread rests and costs nothing: no alarm is set."""
    due_at = _due_at(thread_id)
    if due_at is not None:
        left = (due_at - clock.now()).total_seconds()
        message = f"thread {thread_id!r} has an alarm, {left:.3f} s ahead"
        raise AssertionError(message)


def _due_at(thread_id: str) -> datetime | None:
    return ThreadMaintenance.objects.filter(pk=thread_id).values_list("alarm_at", flat=True).first()
