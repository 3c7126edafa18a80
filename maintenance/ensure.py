"""Making sure that what is owed is armed: one thread at a time, and the periodic audit over all."""

from __future__ import annotations

from datetime import datetime
from itertools import chain

import structlog
from django.db import transaction

from maintenance import alarm, clock, dispatch, failpoints, history, hooks, rows, spans
from maintenance.conf import get_settings
from maintenance.errors import (
    ENSURE_ALARM,
    ENSURE_PUBLICATION_ALARM,
    INTERRUPTIONS,
    DurableAlarmError,
    alarm_operation,
    described,
)
from maintenance.models import MutationLease, ThreadMaintenance, WorkerHeartbeat
from maintenance.ports import MessageDelivery, Projection, Publication
from maintenance.rearm import earliest

log = structlog.get_logger("wakeful.maintenance")


def ensure_alarm(thread_id: str) -> None:
    """Arms a dirty thread and any pending deadline of a port; makes the row if it is missing.

    O(1): never scans the ledger, never runs recovery. Never moves a slot later, never clears one. Raises
    `DurableAlarmError`; if it was for a port's deadline, a dirty thread is armed all the same.
    """
    failpoints.hit("maintenance:ensure:before", thread_id)
    with spans.span("maintenance.ensure_alarm", thread=thread_id):
        _arm_generation(thread_id)
        _arm_deadlines(thread_id)
    failpoints.hit("maintenance:ensure:after", thread_id)


def _arm_generation(thread_id: str) -> None:
    scan = get_settings().scan_interval
    # Race closed: two first looks at a thread without a row; one inserts, the other finds it.
    with alarm_operation(ENSURE_ALARM), transaction.atomic():
        locked = rows.lock_or_create(thread_id, ENSURE_ALARM, delay=scan)
        if locked.row.is_dirty:
            alarm.keep_earlier(locked.row, locked.now + scan)
        _save(locked)


def _arm_deadlines(thread_id: str) -> None:
    deadline = _pending_deadline(thread_id)
    # Race closed: a finish that reads the ports before us and clears the slot after; it waits for this row.
    with alarm_operation(ENSURE_PUBLICATION_ALARM), transaction.atomic():
        locked = rows.lock(thread_id, ENSURE_PUBLICATION_ALARM)
        due = None if locked is None else earliest(deadline, locked.row.timer_at)
        if locked is not None and due is not None:
            alarm.keep_earlier(locked.row, max(locked.now + get_settings().minimum, due))
            _save(locked)


def _pending_deadline(thread_id: str) -> datetime | None:
    try:
        return hooks.current().pending_deadline(thread_id)
    except INTERRUPTIONS:
        raise
    except Exception as error:
        raise DurableAlarmError(ENSURE_PUBLICATION_ALARM, described(error), error) from error


def _save(locked: rows.Locked) -> None:
    hint = dispatch.mark(locked)
    locked.save()
    dispatch.after_commit(hint)


def audit(limit: int = 1_000) -> int:
    """Ensures the threads with a pending deadline or timer but no slot, and clears dead mutation leases.

    One thread that fails is logged and keeps no other from its alarm. Returns how many were armed.
    """
    MutationLease.objects.filter(expires_at__lt=clock.now() - get_settings().mutation_lease_ttl).delete()
    unarmed = [thread_id for thread_id in _pending_threads(limit) if alarm.scheduled(thread_id) is None]
    return sum(_was_ensured(thread_id) for thread_id in unarmed)


def _was_ensured(thread_id: str) -> bool:
    try:
        ensure_alarm(thread_id)
    except DurableAlarmError as error:
        log.error("audit.not_armed", thread=thread_id, error=error.message)
        return False
    return True


def prune() -> int:
    """Deletes the history of passes beyond its time, and the heartbeats of workers that ended as long ago."""
    before = clock.now() - get_settings().pass_history
    WorkerHeartbeat.objects.filter(seen_at__lt=before).delete()
    return history.prune(before)


def _pending_threads(limit: int) -> list[str]:
    installed = hooks.current()
    sources: list[Publication | Projection | MessageDelivery] = [
        *installed.publication,
        installed.projection,
        installed.messages,
    ]
    timers = ThreadMaintenance.objects.filter(timer_at__isnull=False, alarm_at__isnull=True)
    found = chain(timers.values_list("thread_id", flat=True)[:limit], *(s.pending_threads(limit) for s in sources))
    return list(dict.fromkeys(found))
