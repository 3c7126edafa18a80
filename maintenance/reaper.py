"""The reaper: releases leases whose owner is provably dead, so that nobody waits for their expiry."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import structlog
from django.db import transaction

from maintenance import alarm, dispatch, failpoints, history, lease, metrics, owner, rearm, rows
from maintenance.conf import get_settings
from maintenance.errors import FAIL_PASS, alarm_operation
from maintenance.models import ThreadMaintenance

log = structlog.get_logger("wakeful.maintenance")


@dataclass(frozen=True, slots=True)
class Observed:
    """A lease as it was read, without a lock."""

    thread_id: str
    token: uuid.UUID
    owner: str


def reap() -> int:
    """Looks at the leases of this machine and namespace once; the number released."""
    released = 0
    for seen in _leases_of_this_machine():
        if owner.is_provably_dead(seen.owner):
            failpoints.hit("reap:proved", seen.thread_id)
            released += release_of_the_dead(seen)
    return released


def release_of_the_dead(seen: Observed) -> bool:
    """Releases exactly the lease that was observed; `False` if the row has moved on since."""
    # Race closed: the dead pass's lease expired and another worker took over since we looked: its token differs.
    with alarm_operation(FAIL_PASS), transaction.atomic(durable=True):
        locked = rows.lock(seen.thread_id, FAIL_PASS)
        if locked is None or locked.row.lease_token != seen.token:
            return False
        row, settings = locked.row, get_settings()
        history.record(
            locked,
            outcome="worker_lost",
            trigger="",
            due_at=None,
            generation=None,
            error="the process that ran the pass is gone",
        )
        lease.release(locked)
        delay = rearm.death_delay(
            row.starts_since_finish, base=settings.failure_backoff_base, cap=settings.failure_backoff_cap
        )
        alarm.replace(row, locked.now + delay)
        hint = dispatch.mark(locked, trigger="reaper")
        locked.save()
        dispatch.after_commit(hint)
    metrics.reaped.inc()
    log.warning("lease.reaped", thread=seen.thread_id)
    return True


def _leases_of_this_machine() -> list[Observed]:
    leased = ThreadMaintenance.objects.filter(
        lease_expires_at__isnull=False, lease_owner__startswith=f"{owner.machine()}:"
    )
    values = leased.values_list("thread_id", "lease_token", "lease_owner")
    return [Observed(thread_id, token, name) for thread_id, token, name in values if token is not None]
