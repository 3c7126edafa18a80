"""Other threads with database connections of their own: what another process does, when the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from django.db import connection

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds after which a test that waits has failed."""


def elsewhere(work: Callable[[], T]) -> T:
    """Runs `work` on a connection of its own, to its end, and returns what it returned."""
    with running(work) as future:
        return future.result(timeout=PATIENCE)


@contextmanager
def running(*works: Callable[[], T]) -> Iterator[Future[T]]:
    """Runs each work on a thread and connection of its own beside the block; yields the future of the first.

    The block must let them end; what one of them raised is raised at the end of the block.
    """
    with ThreadPoolExecutor(max_workers=len(works)) as pool:
        futures = [pool.submit(_on_own_connection, work) for work in works]
        yield futures[0]
        for future in futures:
            future.result(timeout=PATIENCE)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until the condition holds; fails the test, naming `what`, if it does not in good time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)


def someone_waits_for_a_lock() -> bool:
    """Whether a connection to this database waits for another one's lock (PostgreSQL)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


def _on_own_connection(work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        connection.close()
