"""Messages that arrive, and what the row was before and after."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

from maintenance import clock, passes
from maintenance.delivery import Delivery
from maintenance.models import ThreadMaintenance
from maintenance.passes import Result

LEASE = timedelta(seconds=30)
"""How long a lease of the default settings lives without a renewal."""


def arrive(seq: int | None, *, thread_id: str = "t", hops: int = 0) -> Result:
    """Delivers the message that was sent for slot `seq`, whatever the row says now."""
    return passes.deliver(Delivery(thread_id=thread_id, seq=seq, hops=hops))


def stored(thread_id: str = "t") -> dict[str, Any]:
    """Every column of the row."""
    return {**ThreadMaintenance.objects.filter(pk=thread_id).values().get()}


def lease_of_another(*, left: timedelta = timedelta(seconds=20)) -> dict[str, Any]:
    """The columns of a lease that another worker holds for that long yet."""
    now = clock.now()
    return {
        "lease_token": UUID("5b0f6b2e-6f0c-4c1f-9a55-0d6c1a2b3c4d"),
        "lease_epoch": 4,
        "lease_owner": "another",
        "lease_started_at": now,
        "lease_expires_at": now + left,
    }


def raise_it(error: BaseException) -> NoReturn:
    """A `raise` where only an expression fits."""
    raise error
