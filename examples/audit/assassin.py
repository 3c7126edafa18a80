"""Kills a worker in the middle of a pass, and counts only what was certainly one."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field

from examples.audit.workers import Worker
from maintenance import owner
from maintenance.models import ThreadMaintenance

PAUSE_SECONDS = (0.2, 1.2)
"""Bounds of the random wait between two kills."""


@dataclass(slots=True)
class Assassin:
    """Waits for a random moment, picks a process that holds a lease, kills its worker."""

    workers: list[Worker]
    kills_wanted: int
    kills: int = 0
    interrupted: set[tuple[str, int]] = field(default_factory=set)
    """(thread, epoch) of each pass that was killed."""
    _next: float = field(default_factory=time.monotonic)

    def strike(self) -> bool:
        """Kills if the moment has come and some pass runs; whether it did."""
        if self.kills >= self.kills_wanted or time.monotonic() < self._next:
            return False
        if not self._kill_a_holder():
            return False
        self._next = time.monotonic() + random.uniform(*PAUSE_SECONDS)  # noqa: S311 - not a secret
        return True

    def _kill_a_holder(self) -> bool:
        for thread_id, epoch, holder in _leases():
            seen = owner.parse(holder)
            worker = self._worker_of(seen.pid) if seen else None
            if seen is None or worker is None:
                continue
            if _stopped_while_holding(seen.pid, thread_id, epoch):
                worker.kill()
                self.kills += 1
                self.interrupted.add((thread_id, epoch))
                return True
            _send(seen.pid, signal.SIGCONT)
        return False

    def _worker_of(self, pid: int) -> Worker | None:
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:
            return None
        return next((worker for worker in self.workers if worker.group == group), None)


def _stopped_while_holding(pid: int, thread_id: str, epoch: int) -> bool:
    """Stops the process, then looks again: what it holds now, it will hold when it dies."""
    return _send(pid, signal.SIGSTOP) and (thread_id, epoch) in {(t, e) for t, e, _ in _leases()}


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _leases() -> list[tuple[str, int, str]]:
    leased = ThreadMaintenance.objects.filter(lease_token__isnull=False)
    return list(leased.values_list("thread_id", "lease_epoch", "lease_owner"))
