"""The begin transaction: what a delivery means, decided under the row lock, and the lease if it may run."""

from __future__ import annotations

import uuid
from datetime import datetime

import structlog
from django.db import DatabaseError, transaction

from maintenance import alarm, dispatch, failpoints, finish, history, hooks, hotpath, lease, metrics, owner, rows
from maintenance.conf import get_settings
from maintenance.delivery import IN_PLACE, Begun, Delivery, Outcome
from maintenance.errors import BEGIN_PASS, INTERRUPTIONS, alarm_operation, kind_of
from maintenance.lease import Lease
from maintenance.rearm import earliest
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
    # Asynchronous only if user code cannot run before a synchronous commit of this pass: a database crash that
    # loses this commit then loses nothing but a lease, and the row is still due.
    relaxed = installed.runtime.commits_before_user_code and not installed.leave_the_database
    if delivery.trigger == IN_PLACE and hotpath.serves():
        continued = _continue(delivery, token, relaxed=relaxed)
        if continued is not None:
            return continued
    # Race closed: two deliveries of one slot. The second waits here and then sees the lease, or another slot.
    with alarm_operation(BEGIN_PASS), transaction.atomic(durable=True):
        locked = rows.lock(delivery.thread_id, BEGIN_PASS, relaxed=relaxed)
        if locked is None:
            if not installed.ledger.thread_exists(delivery.thread_id):
                return Outcome.UNKNOWN_THREAD
            locked = rows.lock_or_create(delivery.thread_id, BEGIN_PASS, relaxed=relaxed)
        if locked.row.lease_token == token:
            return _begun(locked, lease.held_by(locked, token), delivery, locked.row.alarm_at)
        refused = classify(locked, delivery)
        if refused is not None:
            return refused
        failpoints.hit("delivery:before-lease", delivery.thread_id)
        return _start(locked, delivery, token)


def _continue(delivery: Delivery, token: uuid.UUID, *, relaxed: bool) -> Begun | None:
    """The begin of a continuation in place: one statement that reads nothing but the row.

    `None` if the row is not just as this worker left it; nothing was written and the general begin decides.
    """
    failpoints.hit("delivery:before-lease", delivery.thread_id)
    with alarm_operation(BEGIN_PASS):
        taken = hotpath.take(delivery.thread_id, delivery.seq or 0, token=token, owner=owner.current(), relaxed=relaxed)
    if taken is None:
        return None
    row, now, due_at = taken
    locked = Locked(row, now)
    return _begun(locked, lease.held_by(locked, token), delivery, due_at)


def classify(locked: Locked, delivery: Delivery) -> Outcome | None:
    """Why this delivery does not run; `None` if it does. Reads the locked row only and writes nothing."""
    row, now = locked.row, locked.now
    if row.has_live_lease(now) and (delivery.forced or delivery.seq in {None, row.alarm_seq}):
        return Outcome.BUSY
    if delivery.forced:
        return None
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
    due_at = row.alarm_at
    _let_timer_come(locked)
    if not row.is_dirty:
        pending = _pending_deadline(locked)
        if pending is None or pending > locked.now:
            return finish.caught_up_at_once(locked, pending, trigger=delivery.trigger, due_at=due_at)
    held = lease.take(locked, token)
    row.starts_since_finish += 1
    _consume_slot(locked, delivery)
    locked.save()
    return _begun(locked, held, delivery, due_at)


def _let_timer_come(locked: Locked) -> None:
    """A durable timer that has come is a write of the clock: it announces a generation."""
    row = locked.row
    if row.timer_at is not None and row.timer_at <= locked.now:
        row.timer_at = None
        row.dirty += 1


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


def _consume_slot(locked: Locked, delivery: Delivery) -> None:
    """The slot that this delivery answers gives way to the crash fallback.

    A forced pass answers no slot: one that still lies ahead is kept if it is earlier than the fallback. Its message
    will find the thread busy and be gone, so it counts as not handed over.
    """
    row, settings = locked.row, get_settings()
    ahead = delivery.forced and row.alarm_at is not None and row.alarm_at > locked.now
    asked = row.alarm_at if ahead else None
    if ahead:
        row.hint_seq = None
    alarm.replace(row, earliest(asked, locked.now + settings.minimum))


def _quarantine(locked: Locked) -> Outcome:
    locked.row.quarantined_at = locked.now
    locked.row.quarantine_reason = f"worker lost: {locked.row.starts_since_finish} starts without an end"
    lease.release(locked)
    locked.save()
    metrics.quarantined.inc()
    return Outcome.QUARANTINED


def _begun(locked: Locked, held: Lease, delivery: Delivery, due_at: datetime | None) -> Begun:
    row = locked.row
    return Begun(
        lease=held,
        trigger=delivery.trigger,
        generation=row.dirty,
        actionable=row.is_dirty,
        raced=row.has_mutation_in_flight(locked.now),
        nonterminal=row.nonterminal,
        due_at=due_at,
        started_at=locked.now,
    )
