"""Waiting for a settlement: looks now, and again at growing intervals, until it is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

from asgiref.sync import sync_to_async

from agents import settlement, transactions
from agents.conf import get_settings
from agents.errors import NotSettledInTime
from agents.settlement import Settlement
from maintenance.errors import MutationRefused

FIRST_LOOK = 0.005
"""Seconds until the second look; each further one is twice as far, up to `SETTLEMENT_POLL_MS`."""


def wait(submission_id: UUID, timeout: float | timedelta | None) -> Settlement:
    """The settlement, once it is there. Raises `NotSettledInTime`, `UnknownSubmission`."""
    if transactions.is_open():
        # Inside the caller's transaction the wait could be for something that only its own commit sets going.
        raise MutationRefused("wait for a settlement outside transaction.atomic(): nothing runs before it commits")
    for pause in _pauses(timeout):
        found = settlement.read(submission_id)
        if found is not None:
            return found
        time.sleep(pause)
    raise _too_late(submission_id)


async def await_(submission_id: UUID, timeout: float | timedelta | None) -> Settlement:  # noqa: ASYNC109 - the door's word
    """As `wait`, without holding the event loop."""
    for pause in _pauses(timeout):
        found = await sync_to_async(settlement.read)(submission_id)
        if found is not None:
            return found
        await asyncio.sleep(pause)
    raise _too_late(submission_id)


def _pauses(timeout: float | timedelta | None) -> Iterator[float]:
    """How long to sleep after each look; the last look is at the end of the time."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    end = None if seconds is None else time.monotonic() + seconds
    pause, longest = FIRST_LOOK, get_settings().settlement_poll.total_seconds()
    while True:
        left = longest if end is None else end - time.monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            return
        pause = min(pause * 2, longest)


def _too_late(submission_id: UUID) -> NotSettledInTime:
    return NotSettledInTime(f"submission {submission_id} is not settled yet; it is still owed")
