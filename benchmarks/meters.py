"""What is read off: statements, commits, flushes to disk, the database's clock, percentiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection


def wait_until(condition: Callable[[], bool], *, seconds: float, every: float = 0.05, what: str) -> float:
    """Looks until the condition holds and returns how long that took. Raises `TimeoutError`."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            message = f"waited {seconds:.0f} s in vain for {what}"
            raise TimeoutError(message)
        time.sleep(every)
    return time.monotonic() - started


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` of the values do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


@dataclass(slots=True)
class Statements:
    """The statements of this process's connection, without transaction control and health checks."""

    sent: list[tuple[str, Any]] = field(default_factory=list)
    """Each with its parameters."""

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self.sent.append((sql, params))
        return execute(sql, params, many, context)

    def __len__(self) -> int:
        return len(self.sent)


@contextmanager
def counted_statements() -> Iterator[Statements]:
    """Collects what this process sends to the database."""
    statements = Statements()
    with connection.execute_wrapper(statements):
        yield statements


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of PostgreSQL. `commits` are of this run's database, `flushes` of the whole server."""

    commits: int
    flushes: int

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(self.commits - earlier.commits, self.flushes - earlier.flushes)


def counters() -> Counters:
    """The counters now. A process reports its share a second late, or when it ends: read them after it has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),"
            " (SELECT wal_sync FROM pg_stat_wal)"
        )
        return Counters(*cursor.fetchone())


def backends() -> list[int]:
    """The server's processes that serve this run's database, this connection's own left out."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return [pid for (pid,) in cursor.fetchall()]


def clock_offset(tries: int = 20) -> timedelta:
    """How far the database's clock is ahead of this process's, by the quickest of some round trips."""
    return min(_one_offset() for _ in range(tries))[1]


def _one_offset() -> tuple[timedelta, timedelta]:
    with connection.cursor() as cursor:
        before = datetime.now(UTC)
        cursor.execute("SELECT clock_timestamp()")
        theirs: datetime = cursor.fetchone()[0]
        after = datetime.now(UTC)
    return after - before, theirs - (before + (after - before) / 2)


def plan_of(sql: str, params: Any) -> list[str]:
    """PostgreSQL's plan of a statement, executed and rolled back."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {sql}", params)
        plan = [line for (line,) in cursor.fetchall()]
        cursor.execute("ROLLBACK")
    return plan
