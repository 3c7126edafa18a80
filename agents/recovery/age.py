"""How old an interrupted run may be: what is older is not gone on with until a person says so."""

from __future__ import annotations

from datetime import datetime

from agents.conf import get_settings
from agents.models import Attempt
from agents.recovery.classify import Facts
from agents.states import Ending
from maintenance import clock, operations
from maintenance.errors import ThreadParked
from maintenance.wording import spoken

WAITED = (Ending.SUSPENDED, Ending.RETRIED)
"""Endings that interrupt nothing: the run waited, however long, and what it waited for is there."""


def check(thread_id: str, begun: Facts) -> None:
    """Raises `ThreadParked` if the run that the next attempt would go on with was interrupted too long ago."""
    limit = get_settings().resume_within
    since = None if limit is None else _interrupted_at(thread_id, begun)
    if limit is None or since is None or (age := clock.now() - since) <= limit:
        return
    raise ThreadParked(
        f"the run of submission #{begun.queue_sequence} was interrupted {spoken(age)} ago, the limit is "
        f"{spoken(limit)}: resume the thread if it may go on, or abort the submission first"
    )


def _interrupted_at(thread_id: str, begun: Facts) -> datetime | None:
    """When its last attempt ended, or began if it died; or when a person told the thread to go on since then."""
    last = Attempt.objects.filter(submission_id=begun.submission_id).order_by("-number").first()
    if last is None or last.ending in WAITED:
        return None
    interrupted = last.ended_at or last.started_at
    told = operations.told_to_go_on(thread_id)
    return interrupted if told is None else max(interrupted, told)
