"""What a test stands on: no broker, a clock that it can move, one database connection, no thread left behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

from django.db import connections
from django.test import SimpleTestCase

from agents.drivers import asynchronous
from maintenance import renewal
from maintenance import testing as maintenance
from maintenance.passes import Result
from maintenance.testing import MovedClock, fixed_jitter, moved_clock, recorded_hints

_clock: MovedClock | None = None
"""The clock of the test that runs."""


@contextmanager
def durable_testing() -> Iterator[None]:
    """Holds for one test: hints go nowhere, time moves only by `travel`, helper threads end with the block.

    Chance is out of play: a retry is due at its earliest moment.
    Coroutine handlers use the test's own connection, so they see what a `TestCase` has not committed.
    """
    global _clock  # noqa: PLW0603 - one clock per process, as in production
    if _clock is not None:
        yield
        return
    with moved_clock() as _clock, fixed_jitter(0), recorded_hints(), _one_connection():
        try:
            yield
        finally:
            _clock = None
            renewal.stop()


class DurableTests(SimpleTestCase):
    """Mixed into a Django test case before it: `class RefundTests(DurableTests, TestCase)`."""

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(durable_testing())


def travel(duration: float | timedelta) -> None:
    """Lets so much time go by (seconds, or a `timedelta`): timers, expiries, retries and leases come nearer.

    It does not run anything; `run_due_passes()` then does what has become due.
    """
    if _clock is None:
        message = "travel() needs durable_testing(): mix in DurableTests, or use the fixture of agents.testing.plugin"
        raise RuntimeError(message)
    ahead = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
    if ahead < timedelta():
        message = "time goes forward"
        raise ValueError(message)
    _clock.ahead += ahead


def run_due_passes(limit: int = 100, *, failing: bool = False) -> list[Result]:
    """Runs passes, in this process, until nothing is due any more; what each came to.

    Raises `AssertionError` after `limit` passes (something runs in a circle), and with the text of the first pass
    that failed, unless the test expects that (`failing=True`).
    """
    results = maintenance.run_due_passes(limit)
    failed = next((result for result in results if result.failed), None)
    if failed is not None and not failing:
        message = f"a pass failed: {failed.error}"
        raise AssertionError(message)
    return results


@contextmanager
def _one_connection() -> Iterator[None]:
    """Lets the helper thread of coroutine handlers use the connections of the test's thread, which waits meanwhile."""
    shared = {alias: connections[alias] for alias in connections}

    def adopt() -> None:
        for alias, connection in shared.items():
            connections[alias] = connection

    for connection in shared.values():
        connection.inc_thread_sharing()
    helper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wakeful-test", initializer=adopt)
    before, asynchronous.helper = asynchronous.helper, lambda: helper
    try:
        yield
    finally:
        asynchronous.helper = before
        helper.shutdown()
        for connection in shared.values():
            connection.dec_thread_sharing()
