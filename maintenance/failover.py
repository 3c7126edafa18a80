"""After a failover: every thread gets a new generation and a new slot sequence.

A database that failed over without synchronous replication may have lost its last commits. Messages that are still
on their way then carry slot sequences that will be given out again, and a generation may have been acknowledged
that the new primary hands out a second time. One step ahead for both makes every old message stale and gives every
thread one useful pass. Leases are left alone: their tokens never repeat, and what nobody renews expires.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import OperationalError, transaction
from django.db.models import F, Value
from django.db.models.functions import Coalesce, Least

from maintenance import clock
from maintenance.conf import get_settings
from maintenance.models import SCHEMA_VERSION, OperatorAction, ThreadMaintenance

BATCH = 500
TRIES = 5
"""Of one batch whose rows another transaction holds for longer than the lock timeout."""

EVERY_THREAD = "*"
"""Stands for all threads in the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How far the run has come: everything up to thread `last`, in the order of ids, has committed."""

    count: int = 0
    last: str = ""


def move_on(*, after: str = "", batch: int = BATCH) -> Iterator[Moved]:
    """Moves all threads behind `after`, one batch a transaction; yields after each commit.

    May be stopped anywhere and gone on with by `after=moved.last`; going over a thread twice costs it one empty pass.
    Raises `OperationalError` if a batch could not be locked in several tries.
    """
    moved = Moved(last=after)
    while last := _move_batch(moved.last, batch):
        moved = Moved(count=moved.count + last[1], last=last[0])
        yield moved


def record(moved: Moved, *, after: str, actor: str, reason: str) -> None:
    """Writes the audit row of a run that came to its end."""
    OperatorAction.objects.create(
        actor=actor[:200],
        action="after_failover",
        thread_id=EVERY_THREAD,
        reason=reason,
        before={"after": after},
        after={"moved": moved.count, "last": moved.last},
        created_at=clock.now(),
    )


def _move_batch(after: str, batch: int) -> tuple[str, int] | None:
    for attempt in range(1, TRIES + 1):
        try:
            return _try_batch(after, batch)
        except OperationalError:
            if attempt == TRIES:
                raise
            time.sleep(0.1 * attempt)
    return None


def _try_batch(after: str, batch: int) -> tuple[str, int] | None:
    # Race closed: a mutation or pass that read the old numbers writes them back over ours; it waits for these locks.
    # Rows are locked in the order of their ids, and everybody else locks one row at a time: no deadlock.
    with transaction.atomic():
        rows = ThreadMaintenance.objects.select_for_update(no_key=True)
        page = rows.filter(pk__gt=after, schema_version=SCHEMA_VERSION).order_by("pk")
        ids = list(page.values_list("pk", flat=True)[:batch])
        if not ids:
            return None
        now = clock.now()
        at = Value(now + get_settings().scan_interval)
        ThreadMaintenance.objects.filter(pk__in=ids).update(
            dirty=F("dirty") + 1,
            alarm_seq=F("alarm_seq") + 1,
            alarm_at=Least(Coalesce("alarm_at", at), at),
            updated_at=now,
        )
    return ids[-1], len(ids)
