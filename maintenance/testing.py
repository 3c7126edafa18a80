"""Tools for tests of maintenance: a still clock, recorded hints, due passes without a broker, failpoints.

Nothing here is imported by production code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F
from django.utils import timezone

from maintenance import clock, dispatch, failpoints, passes, rearm
from maintenance.clock import DatabaseClock, FrozenClock
from maintenance.delivery import Delivery
from maintenance.models import MutationLease, ThreadMaintenance
from maintenance.passes import Result

_MOMENTS = ("alarm_at", "timer_at", "lease_started_at", "lease_expires_at", "mutating_until", "hint_at", "paused_at")

Action = Callable[[str], None]
"""What a failpoint does when it is hit; gets the thread id."""


class Crash(BaseException):
    """A crash for in-process tests: no handler of ordinary errors catches it."""


@contextmanager
def frozen_clock(at: datetime | None = None) -> Iterator[FrozenClock]:
    """Stops the database's clock for this process; move it by assigning to `.at`. Whole milliseconds."""
    start = at or timezone.now().replace(microsecond=0)
    with clock.installed(FrozenClock(start)) as installed:
        assert isinstance(installed, FrozenClock)  # noqa: S101 - narrows the type
        yield installed


class MovedClock(DatabaseClock):
    """The database's clock, so much ahead: as if that time had gone by for everything that is stored."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead

    def expression(self) -> tuple[str, list[Any]]:
        return f"(clock_timestamp() + interval '{self.ahead.total_seconds():f} seconds')", []


@contextmanager
def moved_clock() -> Iterator[MovedClock]:
    """The database's clock for this process, which a test moves ahead by adding to `.ahead`."""
    with clock.installed(MovedClock()) as installed:
        assert isinstance(installed, MovedClock)  # noqa: S101 - narrows the type
        yield installed


@contextmanager
def fixed_jitter(u: float) -> Iterator[None]:
    """Makes every jitter draw `u`, in [0, 1)."""
    before, rearm.jitter = rearm.jitter, lambda: u
    try:
        yield
    finally:
        rearm.jitter = before


@contextmanager
def recorded_hints() -> Iterator[list[dispatch.Hint]]:
    """Collects the hints that would have gone to the broker."""
    sent: list[dispatch.Hint] = []
    before, dispatch.send = dispatch.send, sent.append
    try:
        yield sent
    finally:
        dispatch.send = before


class Failpoints:
    """An ordered queue of armed failpoints, each consumed once; a name that is not at the head is passed by."""

    def __init__(self) -> None:
        self._queue: deque[tuple[str, Action]] = deque()
        self.seen: list[str] = []
        """Every failpoint hit, in order, armed or not."""

    def arm(self, name: str, action: Action) -> None:
        """Arms the next failpoint of the queue. Raises `ValueError` for a name that no code hits."""
        if name not in failpoints.ALL:
            message = f"no failpoint {name!r}; known: {', '.join(failpoints.ALL)}"
            raise ValueError(message)
        self._queue.append((name, action))

    def crash_at(self, name: str) -> None:
        """Arms a failpoint to raise `Crash`."""
        self.arm(name, _crash)

    @property
    def pending(self) -> list[str]:
        """What was armed and not hit yet."""
        return [name for name, _ in self._queue]

    def __call__(self, name: str, thread_id: str) -> None:
        self.seen.append(name)
        if self._queue and self._queue[0][0] == name:
            _, action = self._queue.popleft()
            action(thread_id)


@contextmanager
def armed_failpoints() -> Iterator[Failpoints]:
    """Installs an ordered failpoint queue in this process."""
    armed = Failpoints()
    failpoints.arm(armed)
    try:
        yield armed
    finally:
        failpoints.arm(None)


def deliver(thread_id: str, *, forced: bool = False) -> Result:
    """Delivers the message of the current slot, in this process, without a broker."""
    seq = ThreadMaintenance.objects.values_list("alarm_seq", flat=True).get(pk=thread_id)
    return passes.deliver(Delivery(thread_id=thread_id, seq=None if forced else seq, forced=forced))


def run_due_passes(limit: int = 100) -> list[Result]:
    """Runs passes of all due threads until none is due; raises `AssertionError` after `limit` (a fast loop)."""
    results: list[Result] = []
    while due := _due_threads():
        for thread_id in due:
            results.append(deliver(thread_id))
            if len(results) > limit:
                message = f"more than {limit} passes ran without the threads coming to rest; last: {results[-3:]}"
                raise AssertionError(message)
    return results


def travel(delta: timedelta) -> None:
    """Moves every stored moment of maintenance into the past by `delta`, as if that much time had gone by."""
    ThreadMaintenance.objects.update(**{name: F(name) - delta for name in _MOMENTS})
    MutationLease.objects.update(started_at=F("started_at") - delta, expires_at=F("expires_at") - delta)


def _due_threads() -> list[str]:
    now = clock.now()
    due = ThreadMaintenance.objects.filter(alarm_at__lte=now, paused_at__isnull=True, quarantined_at__isnull=True)
    return [row.thread_id for row in due.order_by("alarm_at") if not row.has_live_lease(now)]


def _crash(thread_id: str) -> None:
    raise Crash(thread_id)
