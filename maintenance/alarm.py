"""The slot: the one deadline of a thread. Every change of it grows `alarm_seq`; keeping it does not.

The first half are changes of a row that the caller has locked. The second half is the service: six operations,
each one transaction of its own (or part of the caller's), each failing as `DurableAlarmError`.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from maintenance import dispatch, hooks, rows
from maintenance.errors import DELETE_ALARM, GET_ALARM, SET_ALARM, DurableAlarmError, alarm_operation
from maintenance.models import ThreadMaintenance
from maintenance.rearm import earliest


def replace(row: ThreadMaintenance, at: datetime | None) -> None:
    """Puts the slot at `at`, earlier or later than it was; `None` empties it."""
    if row.alarm_at != at:
        row.alarm_at = at
        row.alarm_seq += 1


def keep_earlier(row: ThreadMaintenance, at: datetime) -> None:
    """Pulls the slot to `at` unless it is already there or earlier."""
    if row.alarm_at is None or row.alarm_at > at:
        replace(row, at)


def scheduled(thread_id: str) -> datetime | None:
    """The slot, or `None`. A plain read."""
    with alarm_operation(GET_ALARM):
        return ThreadMaintenance.objects.filter(pk=thread_id).values_list("alarm_at", flat=True).first()


def schedule_at(thread_id: str, at: datetime) -> datetime:
    """Replaces the slot by `at` and returns where it ended up.

    It never goes later than a durable timer or a port's deadline, nor later than the slot of a dirty thread:
    those are promises, and this is a wish.
    """
    # Race closed: a mutation that commits between our read and our write would have its earlier slot overwritten.
    with alarm_operation(SET_ALARM), transaction.atomic():
        locked = rows.lock_or_create(thread_id, SET_ALARM)
        row = locked.row
        dirty_bound = row.alarm_at if row.is_dirty else None
        bound = earliest(at, row.timer_at, hooks.current().pending_deadline(thread_id), dirty_bound)
        replace(row, bound)
        _commit(locked)
        return bound or at


def ensure_scheduled_by(thread_id: str, at: datetime) -> datetime:
    """Makes sure that the slot is at `at` or earlier and returns it."""
    # Race closed: two callers that both read an empty slot could leave the later of their two deadlines.
    with alarm_operation(SET_ALARM), transaction.atomic():
        locked = rows.lock_or_create(thread_id, SET_ALARM)
        keep_earlier(locked.row, at)
        _commit(locked)
        return locked.row.alarm_at or at


def schedule_now(thread_id: str, *, trigger: str = "wake") -> bool:
    """Pulls the slot to now. `False`, and nothing is written, while a pass holds the thread.

    A promptness hint: it may be lost, nothing relies on it. A pass that runs re-reads the generation before it
    lets go, so what happened before this call is seen anyway.
    """
    # Race closed: a pass that finishes between the look at its lease and our write would clear our slot unseen.
    with alarm_operation(SET_ALARM), transaction.atomic():
        locked = rows.lock(thread_id, SET_ALARM)
        if locked is None or locked.row.has_live_lease(locked.now):
            return False
        keep_earlier(locked.row, locked.now)
        _commit(locked, trigger=trigger)
        return True


def cancel(thread_id: str) -> bool:
    """Empties the slot; `False` if it was empty.

    Raises `DurableAlarmError` while the thread is dirty, or while a durable timer or a port's deadline stands:
    emptying it then would lose work. Nothing is written.
    """
    # Race closed: a mutation that commits between the check and the write would end dirty and unarmed.
    with alarm_operation(DELETE_ALARM), transaction.atomic():
        locked = rows.lock(thread_id, DELETE_ALARM)
        if locked is None or locked.row.alarm_at is None:
            return False
        if locked.row.is_dirty:
            raise DurableAlarmError(DELETE_ALARM, "the thread is dirty; its alarm goes when a pass has acknowledged it")
        if locked.row.timer_at or hooks.current().pending_deadline(thread_id):
            raise DurableAlarmError(DELETE_ALARM, "a timer or a port's deadline stands; the slot belongs to it")
        replace(locked.row, None)
        locked.save()
        return True


def _commit(locked: rows.Locked, *, trigger: str = "alarm") -> None:
    hint = dispatch.mark(locked, trigger=trigger)
    locked.save()
    dispatch.after_commit(hint)
