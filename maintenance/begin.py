"""The begin transaction: what a delivery means, decided under the row lock, and the lease if it may run."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime

import structlog
from django.db import DatabaseError, transaction

from maintenance import (
    ceiling,
    dispatch,
    drain,
    failpoints,
    finish,
    history,
    hooks,
    lease,
    metrics,
    operations,
    rows,
    start,
)
from maintenance.conf import get_settings
from maintenance.delivery import Begun, Delivery, Outcome
from maintenance.errors import BEGIN_PASS, INTERRUPTIONS, alarm_operation, kind_of
from maintenance.rows import Locked

log = structlog.get_logger("wakeful.maintenance")

MAX_HOPS = 3
"""A broker that ignores countdowns must not spin; after so many the sweep sends the message when it is due."""


def begin(delivery: Delivery, token: uuid.UUID) -> Begun | finish.Finished | Outcome:
    """Begins a pass, ends it at once if the thread is caught up and nothing is due, or says why not.

    With the same `token` it may be repeated after a lost reply: it then finds its own lease. Raises
    `DurableAlarmError`; nothing was written.
    """
    failpoints.hit("maintenance:begin:before", delivery.thread_id)
    installed = hooks.current()
    relaxed = installed.may_begin_relaxed and installed.begin_head is None
    # Race closed: two deliveries of one slot. The second waits here and then sees the lease, or another slot.
    with alarm_operation(BEGIN_PASS), transaction.atomic(durable=True):
        locked = rows.lock(delivery.thread_id, BEGIN_PASS, relaxed=relaxed)
        if locked is None:
            if not installed.ledger.thread_exists(delivery.thread_id):
                return Outcome.UNKNOWN_THREAD
            locked = rows.lock_or_create(delivery.thread_id, BEGIN_PASS, relaxed=relaxed)
        if locked.row.lease_token == token:
            held = lease.held_by(locked, token)
            return start.begun(locked, held, trigger=delivery.trigger, due_at=locked.row.alarm_at)
        refused = classify(locked, delivery)
        if refused is not None:
            return refused
        return _start(locked, delivery, token)


def classify(locked: Locked, delivery: Delivery) -> Outcome | None:
    """Why this delivery does not run; `None` if it does. Reads the locked row only and writes nothing."""
    row, now = locked.row, locked.now
    if row.has_live_lease(now) and (delivery.forced or delivery.seq in {None, row.alarm_seq}):
        return Outcome.BUSY
    if delivery.forced:
        # A message that forces is for one slot, as any other, and a pause takes it back; a command names no slot.
        wanted = delivery.seq is None or delivery.seq == row.alarm_seq == row.hint_seq
        return None if wanted else Outcome.SUPERSEDED
    if row.paused_at or row.quarantined_at:
        return Outcome.PAUSED
    if row.alarm_at is None:
        return Outcome.CLEARED
    if delivery.seq is not None and delivery.seq != row.alarm_seq:
        return Outcome.SUPERSEDED
    if row.alarm_at > now + get_settings().early_tolerance:
        _send_back(locked, delivery)
        return Outcome.EARLY
    return None


def _send_back(locked: Locked, delivery: Delivery) -> None:
    """Hands an early message back with what is left of its countdown, unless the sweep will send one anyway."""
    row, now, settings = locked.row, locked.now, get_settings()
    at = row.alarm_at
    if delivery.seq is None or at is None or delivery.hops >= MAX_HOPS or at > now + settings.dispatch_horizon:
        return
    dispatch.after_commit(
        dispatch.Hint(
            thread_id=row.thread_id,
            seq=row.alarm_seq,
            countdown=max(at - now, settings.early_floor),
            trigger=delivery.trigger,
            hops=delivery.hops + 1,
        )
    )


def _start(locked: Locked, delivery: Delivery, token: uuid.UUID) -> Begun | finish.Finished | Outcome:
    row = locked.row
    history.note_lost_lease(locked)
    if row.starts_since_finish >= get_settings().quarantine_starts and not delivery.forced:
        return _quarantine(locked)
    if not delivery.forced and ceiling.reached(locked):
        return _park(locked, ceiling.reason())
    due_at = row.alarm_at
    start.let_timer_come(locked)
    if not row.is_dirty:
        pending = _pending_deadline(locked)
        if pending is None or pending > locked.now:
            return finish.caught_up_at_once(locked, pending, trigger=delivery.trigger, due_at=due_at)
    begun = start.start(locked, token, trigger=delivery.trigger, due_at=due_at, forced=delivery.forced)
    locked.save()
    return _with_head(begun)


def _with_head(begun: Begun) -> Begun:
    """Begins the head as well, if the runtime can; a worker that drains begins none."""
    begin_head = hooks.current().begin_head
    if begin_head is None or not begun.actionable or drain.requested():
        return begun
    return replace(begun, head=begin_head(begun.lease.thread_id, begun.lease.epoch))


def _pending_deadline(locked: Locked) -> datetime | None:
    """The earliest deadline of the ports, asked in statements begun after the row lock.

    A port that cannot say counts as due: the pass that it gets fails with the port's error and backs off. If it
    was the database that failed, this transaction can decide nothing; then begin fails and the slot stays.
    """
    try:
        return hooks.current().pending_deadline(locked.row.thread_id)
    except (*INTERRUPTIONS, DatabaseError):
        raise
    except Exception as error:  # noqa: BLE001 - the row would stay due, and the same would happen again at once
        log.warning("begin.deadline_unavailable", thread=locked.row.thread_id, kind=kind_of(error))
        return locked.now


def _quarantine(locked: Locked) -> Outcome:
    locked.row.quarantined_at = locked.now
    locked.row.quarantine_reason = f"worker lost: {locked.row.starts_since_finish} starts without an end"
    lease.release(locked)
    locked.save()
    metrics.quarantined.inc()
    return Outcome.QUARANTINED


def _park(locked: Locked, reason: str) -> Outcome:
    locked.row.last_outcome, locked.row.last_error = Outcome.PARKED, reason
    operations.park(locked, reason)
    lease.release(locked)
    locked.save()
    log.warning("pass.parked", thread=locked.row.thread_id, reason=reason)
    return Outcome.PARKED
