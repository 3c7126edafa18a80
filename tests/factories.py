"""Rows in a given state, as the scenarios write them: R(dirty, processed, nonterminal, slot, #seq)."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from maintenance import clock
from maintenance.models import ThreadMaintenance

MS = timedelta(milliseconds=1)


def make_row(
    dirty: int,
    processed: int,
    nonterminal: int = 0,
    slot_ms: float | None = None,
    seq: int = 1,
    *,
    thread_id: str = "t",
    **columns: Any,
) -> ThreadMaintenance:
    """Makes R(dirty, processed, nonterminal, T+slot_ms, #seq); `None` is no slot."""
    at = None if slot_ms is None else clock.now() + slot_ms * MS
    return ThreadMaintenance.objects.create(
        thread_id=thread_id,
        dirty=dirty,
        processed=processed,
        nonterminal=nonterminal,
        alarm_at=at,
        alarm_seq=seq,
        **columns,
    )


def row_of(thread_id: str = "t") -> ThreadMaintenance:
    """The row as it is stored now."""
    return ThreadMaintenance.objects.get(pk=thread_id)


def numbers(start: datetime, thread_id: str = "t") -> tuple[int, int, int, float | None]:
    """(dirty, processed, nonterminal, slot in ms after `start`) of the stored row, to compare with R(...)."""
    row = row_of(thread_id)
    slot = None if row.alarm_at is None else (row.alarm_at - start) / MS
    return row.dirty, row.processed, row.nonterminal, slot


def live_lease(ms: float = 30_000) -> dict[str, Any]:
    """The columns of a lease that another pass holds for so many ms more (negative: one that has expired)."""
    return {
        "lease_token": uuid.uuid4(),
        "lease_epoch": 1,
        "lease_owner": "another pass",
        "lease_started_at": clock.now(),
        "lease_expires_at": clock.now() + ms * MS,
    }


def stored(thread_id: str = "t") -> dict[str, Any]:
    """Every column of the stored row, to see that nothing was written."""
    return dict(ThreadMaintenance.objects.filter(pk=thread_id).values().get())
