"""One thread per process that renews the leases its passes hold, on a connection of its own.

It opens its connection with the first renewal that is due, so a process of short passes never has one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from maintenance import clock, failpoints
from maintenance.conf import get_settings
from maintenance.errors import kind_of
from maintenance.lease import Lease
from maintenance.models import ThreadMaintenance

log = structlog.get_logger("wakeful.maintenance")


class Renewer:
    """Keeps the registered leases alive until they are let go of, lost, or past their limit."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._leases: dict[object, Lease] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def add(self, lease: Lease) -> None:
        with self._changed:
            self._leases[lease.token] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wakeful-renewal", daemon=True)
                self._thread.start()

    def remove(self, lease: Lease) -> None:
        with self._changed:
            self._leases.pop(lease.token, None)

    def stop(self) -> None:
        """Ends the thread and its connection (for tests and orderly exits)."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                for lease in self._due():
                    _renew_logged(lease)
        finally:
            connection.close()

    def _wait(self) -> bool:
        """Sleeps until the next look; `False` when told to stop."""
        with self._changed:
            if not self._stopping:
                self._changed.wait(get_settings().lease_renewal.total_seconds() / 4)
            return not self._stopping

    def _due(self) -> list[Lease]:
        now = time.monotonic()
        age = get_settings().lease_renewal.total_seconds() * 0.75
        with self._changed:
            leases = list(self._leases.values())
        return [x for x in leases if not x.lost and now - x.renewed_at >= age and now < x.renew_until]


def renew(lease: Lease) -> bool:
    """Extends the lease by its full time; `False`, and the lease is marked lost, if the row names another."""
    failpoints.hit("lease:renew:before", lease.thread_id)
    settings = get_settings()
    started = time.monotonic()
    now = clock.now()
    renewed = ThreadMaintenance.objects.filter(
        pk=lease.thread_id,
        lease_token=lease.token,
        lease_epoch=lease.epoch,
        lease_started_at__gt=now - settings.hard_limit,
    ).update(lease_expires_at=now + settings.lease_ttl)
    failpoints.hit("lease:renew:after", lease.thread_id)
    if renewed:
        lease.renewed_at = started
    else:
        lease.lost = True
    return bool(renewed)


def _renew_logged(lease: Lease) -> None:
    try:
        close_old_connections()
        if not renew(lease):
            log.warning("lease.lost", thread=lease.thread_id, epoch=lease.epoch)
    except (DatabaseError, InterfaceError) as error:
        # The pass stops itself when renewals fail for too long; until then the database may come back.
        log.warning("lease.renewal_failed", thread=lease.thread_id, kind=kind_of(error))


_renewer: Renewer | None = None


def _current() -> Renewer:
    global _renewer  # noqa: PLW0603 - one per process; a forked child makes its own
    if _renewer is None or _renewer.pid != os.getpid():
        _renewer = Renewer()
    return _renewer


@contextmanager
def kept(lease: Lease) -> Iterator[Lease]:
    """Renews the lease while the block runs; renewal starts with the claim, not with the first step."""
    renewer = _current()
    renewer.add(lease)
    try:
        yield lease
    finally:
        renewer.remove(lease)


def stop() -> None:
    """Ends this process's renewal thread, if it has one."""
    global _renewer  # noqa: PLW0603
    if _renewer is not None and _renewer.pid == os.getpid():
        _renewer.stop()
    _renewer = None
