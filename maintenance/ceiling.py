"""How many passes a thread may have in an hour: a limit to work that asks to run again and again."""

from __future__ import annotations

from datetime import timedelta

from maintenance import operations
from maintenance.conf import get_settings
from maintenance.models import PassRun
from maintenance.rows import Locked

HOUR = timedelta(hours=1)


def reached(locked: Locked) -> bool:
    """Whether one more pass of the locked row's thread would be too many. Without a limit it costs nothing.

    Counted are passes that ended, the one that will be written with the row among them, within the last hour and
    since a person last told the thread to go on.
    """
    limit = get_settings().passes_per_hour
    if limit is None:
        return False
    stored = limit if locked.ended is None else limit - 1
    if stored == 0:
        return True
    thread_id = locked.row.thread_id
    ends = PassRun.objects.filter(thread_id=thread_id).order_by("-id").values_list("finished_at", flat=True)
    first = next(iter(ends[stored - 1 : stored]), None)
    if first is None or first <= locked.now - HOUR:
        return False
    told = operations.told_to_go_on(thread_id)
    return told is None or first > told


def reason() -> str:
    """Why a thread is parked that has reached it."""
    return f"{get_settings().passes_per_hour} passes within an hour, as many as PASSES_PER_HOUR allows"
