"""The timer thread of a worker: sweeps, reaps, audits and beats the worker's heart.

A thread of the worker's main process with its own connection: the worker's event loop must not wait for a database.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import structlog
from django.db import close_old_connections, connection

from maintenance import clock, ensure, reaper, sweep
from maintenance.conf import get_settings
from maintenance.errors import kind_of
from maintenance.models import WorkerHeartbeat

log = structlog.get_logger("wakeful.maintenance")

HEARTBEAT_SECONDS = 10.0

between_forks = threading.Lock()
"""Held during each step, and by whoever forks. A pool child forked in the middle of a step would inherit locks (of the
database driver, of the logs) that no thread of it will ever release, and would hang with the first pass."""

os.register_at_fork(
    before=between_forks.acquire, after_in_parent=between_forks.release, after_in_child=between_forks.release
)


class Sweeper(threading.Thread):
    """The timer thread. A failing tick is logged and the next one tries again."""

    def __init__(self) -> None:
        super().__init__(name="wakeful-sweeper", daemon=True)
        self.worker = f"{socket.gethostname()}:{os.getpid()}"
        self._stopping = threading.Event()
        self._next_heartbeat = self._next_audit = 0.0

    def stop(self) -> None:
        self._stopping.set()
        self.join(timeout=10)

    def run(self) -> None:
        interval = get_settings().sweep_interval.total_seconds()
        # A random phase, so that workers that start together do not sweep together.
        wait = random.random() * interval  # noqa: S311 - not a secret
        while not self._stopping.wait(wait):
            self._tick()
            wait = interval
        connection.close()

    def _tick(self) -> None:
        for step in (reaper.reap, sweep.sweep, self._beat, self._audit):
            try:
                with between_forks:
                    close_old_connections()
                    step()
            except Exception as error:  # noqa: BLE001 - the timer must outlive a database that comes and goes
                log.warning("sweeper.tick_failed", step=step.__name__, kind=kind_of(error))
                connection.close()

    def _beat(self) -> None:
        if time.monotonic() >= self._next_heartbeat:
            self._next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
            beat(self.worker)

    def _audit(self) -> None:
        if time.monotonic() >= self._next_audit:
            self._next_audit = time.monotonic() + get_settings().ensure_interval.total_seconds()
            ensure.audit()


def beat(worker: str) -> None:
    """Writes the heartbeat row of a worker."""
    now = clock.now()
    WorkerHeartbeat.objects.update_or_create(
        worker=worker, defaults={"seen_at": now}, create_defaults={"seen_at": now, "started_at": now}
    )
