"""One clock: the database's. A worker's own clock only influences when it looks at a message.

On PostgreSQL the time is `clock_timestamp()`: `now()` is frozen at the start of the transaction, which may lie
before the row lock was granted. SQLite runs inside the process, so the process's clock is the database's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol, cast

from django.db import connection
from django.utils import timezone


class Clock(Protocol):
    """The seam that tests replace."""

    def now(self) -> datetime:
        """The time at this moment, in the form that `DateTimeField`s hold."""

    def expression(self) -> tuple[str, list[Any]]:
        """The same as an SQL expression with its parameters, for statements that read it themselves."""


class DatabaseClock:
    """The clock of production."""

    def now(self) -> datetime:
        if connection.vendor != "postgresql":
            return timezone.now()
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp()")
            return cast("datetime", cursor.fetchone()[0])

    def expression(self) -> tuple[str, list[Any]]:
        return "clock_timestamp()", []


class FrozenClock:
    """A clock for tests: stands still until it is moved. One value for every process part that asks."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def expression(self) -> tuple[str, list[Any]]:
        return "%s::timestamptz", [self.at]


_clock: Clock = DatabaseClock()


def now() -> datetime:
    """The database's time. Read it after the row is locked, inside the transaction that uses it."""
    return _clock.now()


def expression() -> tuple[str, list[Any]]:
    """The clock for a hand-written PostgreSQL statement."""
    return _clock.expression()


@contextmanager
def installed(clock: Clock) -> Iterator[Clock]:
    """Replaces the clock of this process for a test."""
    global _clock  # noqa: PLW0603 - one clock per process is the point
    before, _clock = _clock, clock
    try:
        yield clock
    finally:
        _clock = before
