"""Time that passes until a thread owes nothing: from deadline to deadline on the still clock, without a broker."""

from __future__ import annotations

from datetime import datetime

from maintenance.clock import FrozenClock
from maintenance.models import ThreadMaintenance
from maintenance.passes import Result
from maintenance.testing import deliver


def come_to_rest(clock: FrozenClock, *, limit: int = 200) -> list[Result]:
    """Moves the clock to each next deadline and delivers there, until no thread is armed.

    Raises `AssertionError` after `limit` passes: a thread that never comes to rest.
    """
    results: list[Result] = []
    while armed := _next_armed(clock.at):
        due_at, thread_id = armed
        clock.at = max(clock.at, due_at)
        results.append(deliver(thread_id))
        if len(results) > limit:
            message = f"still armed after {limit} passes; the last: {results[-3:]}"
            raise AssertionError(message)
    return results


def _next_armed(now: datetime) -> tuple[datetime, str] | None:
    rows = ThreadMaintenance.objects.filter(paused_at__isnull=True, quarantined_at__isnull=True)
    due = [(at, row.thread_id) for row in rows if (at := row.effective_due(now)) is not None]
    return min(due, default=None)
