"""The snapshot: the locked row and the pre-armed mutations in flight, read as one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import transaction

from maintenance import rows
from maintenance.errors import GET_ALARM, alarm_operation
from maintenance.models import MutationLease, ThreadMaintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What holds while the lock is held: no mutation of the thread can begin or end."""

    row: ThreadMaintenance
    mutations_in_flight: int


@contextmanager
def snapshot(thread_id: str) -> Iterator[Snapshot]:
    """Locks the thread for a bounded local read. A missing row is made with the bootstrap generations."""
    # Race closed: a pre-armed mutation that begins between the read of the row and the count of leases.
    with alarm_operation(GET_ALARM), transaction.atomic():
        locked = rows.lock_or_create(thread_id, GET_ALARM)
        live = MutationLease.objects.filter(thread_id=thread_id, expires_at__gt=locked.now).count()
        yield Snapshot(row=locked.row, mutations_in_flight=live)
