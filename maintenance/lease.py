"""The lease: at most one pass holds a thread. Its epoch is the producer epoch, its renewal the heartbeat.

Held means that token *and* epoch on the row are ours. Expiry is not compared: if nobody took over, going on is
safe. Epochs may repeat after a database crash, tokens never do, so both are compared.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import transaction

from maintenance import connections, gate, hotpath, owner, rows
from maintenance.conf import get_settings
from maintenance.errors import FINISH_PASS, OwnershipLost
from maintenance.models import ThreadMaintenance
from maintenance.rows import Locked


@dataclass(slots=True)
class Lease:
    """Our side of a lease that a begin transaction took."""

    thread_id: str
    token: uuid.UUID
    epoch: int
    successor: uuid.UUID = field(default_factory=uuid.uuid4)
    """The token under which the finish of this pass begins the next one in place. Known before that commit, so that
    a lost reply can be looked up on the row."""
    lost: bool = False
    """Set by the renewal when the row no longer names us; the pass stops at its next boundary."""
    progressed: bool = False
    """A fenced record of real progress was committed under this lease."""
    renew_until: float = 0.0
    """Monotonic seconds: no renewal after this, so that a body that cannot be stopped loses its lease."""
    renewed_at: float = field(default_factory=time.monotonic)
    """Monotonic seconds of the last successful renewal."""

    def is_lost(self) -> bool:
        """Whether the pass must assume that another one holds the thread.

        True as well when no renewal succeeded for `LEASE_SELF_CANCEL_MS` of this process's monotonic time.
        """
        return self.lost or time.monotonic() - self.renewed_at > get_settings().lease_self_cancel.total_seconds()


def take(locked: Locked, token: uuid.UUID) -> Lease:
    """Takes the lease on the locked row; the caller has seen that no live one is there."""
    row, now = locked.row, locked.now
    row.lease_token = token
    row.lease_epoch += 1
    row.lease_owner = owner.current()
    row.lease_started_at = now
    row.lease_expires_at = now + get_settings().lease_ttl
    return held_by(locked, token)


def held_by(locked: Locked, token: uuid.UUID) -> Lease:
    """Our view of the lease that the row already names."""
    limit = time.monotonic() + get_settings().pass_deadline.total_seconds()
    return Lease(locked.row.thread_id, token, locked.row.lease_epoch, renew_until=limit)


def is_held(locked: Locked, lease: Lease) -> bool:
    """Whether the locked row still names this lease, by token and epoch."""
    return locked.row.lease_token == lease.token and locked.row.lease_epoch == lease.epoch


def release(locked: Locked) -> None:
    """Empties the lease on the locked row. Only finish, failure and the reaper do this."""
    locked.row.lease_token = None
    locked.row.lease_owner = ""
    locked.row.lease_started_at = None
    locked.row.lease_expires_at = None


@contextmanager
def fenced(lease: Lease, *, progress: bool = False, bump: bool = False) -> Iterator[None]:
    """A transaction that can commit only while `lease` is held.

    Its first statement locks the row (a plain read would not fence: the zombie's write would commit). Raises
    `OwnershipLost`, and nothing of the block is written, if the thread was taken over.
    """
    connections.refuse_what_cannot_commit()
    # Race closed: a takeover that commits between a check and our write; it now waits for us or we see it.
    with transaction.atomic(durable=True):
        if not _prove(lease, progress=progress):
            raise _lost(lease)
        if bump:
            gate.bump(lease.thread_id, gate.NO_DELAY)
        yield
    if progress:
        lease.progressed = True


@contextmanager
def held(lease: Lease) -> Iterator[Locked]:
    """As `fenced` with progress, but with the whole row, which the block may change and save.

    An outermost transaction, because the block may release the lease for good.
    """
    connections.refuse_what_cannot_commit()
    # Race closed: as in `fenced`; nothing is saved under a lease that another pass has taken over.
    with transaction.atomic(durable=True):
        locked = rows.lock(lease.thread_id, FINISH_PASS)
        if locked is None or not is_held(locked, lease):
            raise _lost(lease)
        locked.row.starts_since_finish = 0
        yield locked
        locked.save()
    lease.progressed = True


def _lost(lease: Lease) -> OwnershipLost:
    lease.lost = True
    return OwnershipLost(f"another pass holds the thread; epoch {lease.epoch} may write no more")


def _prove(lease: Lease, *, progress: bool) -> bool:
    # Real progress takes a long run that is evicted often out of the suspicion of being poison; once is enough.
    absolve = progress and not lease.progressed
    if hotpath.serves():
        return hotpath.prove(lease.thread_id, lease.token, lease.epoch, absolve=absolve)
    row = ThreadMaintenance.objects.filter(pk=lease.thread_id, lease_token=lease.token, lease_epoch=lease.epoch)
    if absolve:
        return row.update(starts_since_finish=0) == 1
    return row.select_for_update(no_key=True).values_list("pk", flat=True).first() is not None
