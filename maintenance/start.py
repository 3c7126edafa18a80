"""The start of a pass on its locked row: the lease, the count of starts, the crash fallback in the slot.

Used by the begin of a delivery, and by a finish that goes on in place.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from maintenance import alarm, failpoints, lease
from maintenance.conf import get_settings
from maintenance.delivery import IN_PLACE, Begun
from maintenance.lease import Lease
from maintenance.rearm import earliest
from maintenance.rows import Locked


def start(locked: Locked, token: uuid.UUID, *, trigger: str, due_at: datetime | None, forced: bool = False) -> Begun:
    """Takes the lease under `token` and lets the slot give way to the crash fallback; the caller saves the row.

    `due_at` is the deadline that the pass answers.
    """
    failpoints.hit("delivery:before-lease", locked.row.thread_id)
    held = lease.take(locked, token)
    locked.row.starts_since_finish += 1
    _consume_slot(locked, forced=forced)
    return begun(locked, held, trigger=trigger, due_at=due_at)


def in_place(locked: Locked, token: uuid.UUID) -> Begun:
    """Starts the next pass in the transaction that ends the one before; the slot is due and may be acted on."""
    due_at = locked.row.alarm_at
    let_timer_come(locked)
    return start(locked, token, trigger=IN_PLACE, due_at=due_at)


def let_timer_come(locked: Locked) -> None:
    """A durable timer that has come is a write of the clock: it announces a generation."""
    row = locked.row
    if row.timer_at is not None and row.timer_at <= locked.now:
        row.timer_at = None
        row.dirty += 1


def begun(locked: Locked, held: Lease, *, trigger: str, due_at: datetime | None) -> Begun:
    """The pass that holds the locked row by `held`."""
    row = locked.row
    return Begun(
        lease=held,
        trigger=trigger,
        generation=row.dirty,
        actionable=row.is_dirty,
        raced=row.has_mutation_in_flight(locked.now),
        nonterminal=row.nonterminal,
        due_at=due_at,
        started_at=locked.now,
    )


def _consume_slot(locked: Locked, *, forced: bool) -> None:
    """The slot that this pass answers gives way to the crash fallback.

    A forced pass answers no slot: one that still lies ahead is kept if it is earlier than the fallback. Its message
    will find the thread busy and be gone, so it counts as not handed over.
    """
    row, settings = locked.row, get_settings()
    ahead = forced and row.alarm_at is not None and row.alarm_at > locked.now
    asked = row.alarm_at if ahead else None
    if ahead:
        row.hint_seq = None
    alarm.replace(row, earliest(asked, locked.now + settings.minimum))
