"""A running pass, as its hooks hold it: the implementation of `ports.Work`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from maintenance import drain, failpoints, lease
from maintenance.conf import get_settings
from maintenance.errors import PASS_DEADLINE, PassInterrupted
from maintenance.finish import Finished
from maintenance.lease import Lease
from maintenance.ports import RecoveryReport, Tally
from maintenance.rows import Locked

Conclude = Callable[[Locked, Sequence[RecoveryReport], Tally], Finished]
"""Finishes the pass on its locked row, in the transaction that settled, with what recovery had reported."""


class PassWork:
    """Time limits of one pass and the fence of its lease. Limits count from the begin, in monotonic time."""

    def __init__(self, held: Lease, generation: int | None) -> None:
        settings, started = get_settings(), time.monotonic()
        self.lease = held
        self.generation = generation
        self.yield_at = started + settings.soft_yield.total_seconds()
        self.deadline = started + settings.pass_deadline.total_seconds()
        self.cancelled = False
        self.reports: Sequence[RecoveryReport] = ()
        self.conclude: Conclude | None = None
        """Set if a settlement may finish the pass in its own transaction."""
        self.finished: Finished | None = None

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

    @contextmanager
    def settling(self) -> Iterator[Tally]:
        tally, finished = Tally(), None
        with lease.held(self.lease) as locked:
            yield tally
            if self.conclude is not None:
                finished = self.conclude(locked, self.reports, tally)
        self.finished = finished
        if finished is not None:
            failpoints.hit("maintenance:finish:after", self.thread_id)
