"""A running pass, as its hooks hold it: the implementation of `ports.Work`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from maintenance import drain, lease
from maintenance.conf import get_settings
from maintenance.errors import PASS_DEADLINE, PassInterrupted
from maintenance.lease import Lease


class PassWork:
    """Time limits of one pass and the fence of its lease. Limits count from the begin, in monotonic time."""

    def __init__(self, held: Lease, generation: int | None) -> None:
        settings, started = get_settings(), time.monotonic()
        self.lease = held
        self.generation = generation
        self.yield_at = started + settings.soft_yield.total_seconds()
        self.deadline = started + settings.pass_deadline.total_seconds()
        self.cancelled = False

    @property
    def thread_id(self) -> str:
        return self.lease.thread_id

    @property
    def epoch(self) -> int:
        return self.lease.epoch

    def should_yield(self) -> bool:
        return time.monotonic() >= self.yield_at or drain.requested() or self.lease.is_lost()

    def checkpoint(self) -> None:
        if self.cancelled:
            raise PassInterrupted("cancelled")
        if self.lease.is_lost():
            raise PassInterrupted("lease lost")
        if time.monotonic() >= self.deadline:
            raise PassInterrupted(PASS_DEADLINE)

    def fenced(self, *, progress: bool = False, bump: bool = False) -> AbstractContextManager[None]:
        return lease.fenced(self.lease, progress=progress, bump=bump)
