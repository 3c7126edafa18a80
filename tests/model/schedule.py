"""One schedule: operation X stops at its n-th gap, operation Y runs beside it, X goes on.

X and Y are two threads with two real connections. A gap lies before each statement, before and after each COMMIT
(the hooks of the commit come after it), and after the operation. Nothing here waits for time: Y has either ended or
the database says that it waits for a lock of X.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from django.db import connection, connections, transaction

from maintenance import dispatch
from maintenance.models import ThreadMaintenance

PATIENCE = 10.0
"""Seconds after which a schedule is stuck and the test has failed."""
LOOK_SECONDS = 0.002
"""How often the database is asked whether Y waits."""

Operation = Callable[[], object]


@dataclass
class Gaps:
    """Counts the gaps of one operation and stops it at one of them."""

    stop_at: int | None = None
    passed: list[str] = field(default_factory=list)
    """What came after each gap so far."""
    stopped: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(self, label: str) -> None:
        self.passed.append(label)
        if len(self.passed) - 1 == self.stop_at:
            self.stopped.set()
            assert self.go_on.wait(PATIENCE), f"nobody let the operation go on before {label}"

    def await_stop(self, running: Future[object]) -> None:
        """Returns when the operation stands at its gap, or has ended without one."""
        running.add_done_callback(lambda _: self.stopped.set())
        assert self.stopped.wait(PATIENCE), "the operation neither stopped nor ended"

    def before_statement(self, execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        self(" ".join(sql.split())[:60])
        return execute(sql, *arguments)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Puts the gaps around what this thread asks of its connection."""
        watched = connections["default"]
        commit = watched._commit  # type: ignore[attr-defined]

        def committing() -> None:
            self("COMMIT")
            commit()
            self("after COMMIT")

        with (
            connection.execute_wrapper(self.before_statement),
            mock.patch.object(watched, "_commit", committing),
        ):
            yield
        self("the end")


def hurry_commits(*, hurry: bool = True) -> None:
    """The order of commits is under test, not what survives a power cut. For this thread's connection."""
    on_postgres = connection.vendor == "postgresql"
    setting = "synchronous_commit" if on_postgres else "synchronous"
    value = ("off" if hurry else "on") if on_postgres else ("OFF" if hurry else "FULL")
    with connection.cursor() as cursor:
        cursor.execute(f"{'SET' if on_postgres else 'PRAGMA'} {setting} = {value}")


class Actor:
    """A thread with a connection that it keeps from one schedule to the next."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self.pid: int = self._pool.submit(self._connect).result(PATIENCE)

    def start(self, operation: Operation, gaps: Gaps | None = None) -> Future[object]:
        return self._pool.submit(operation if gaps is None else lambda: self._watched(operation, gaps))

    def do(self, operation: Callable[[], Any]) -> Any:
        return self._pool.submit(operation).result(PATIENCE)

    def close(self) -> None:
        self._pool.submit(_disconnect).result(PATIENCE)
        self._pool.shutdown(wait=True)

    @staticmethod
    def _watched(operation: Operation, gaps: Gaps) -> object:
        with gaps.watching():
            return operation()

    @staticmethod
    def _connect() -> int:
        hurry_commits()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])


def _disconnect() -> None:
    """The connection of the thread that runs this; `connection.close` alone would name that of the caller."""
    connection.close()


@dataclass
class Ran:
    """How one schedule went."""

    gaps: list[str]
    blocked: bool
    """Y had to wait for X."""
    x: object
    y: object


class Stage:
    """The two actors, and an observer that sees only what is committed."""

    def __init__(self) -> None:
        self.x, self.y, self.observer = Actor("x"), Actor("y"), Actor("observer")
        self.breaches: list[str] = []
        """What the observer saw that may not be: hints of what is not committed, scans that nothing protects."""
        self.sent: list[dispatch.Hint] = []

    def close(self) -> None:
        for actor in (self.x, self.y, self.observer):
            actor.close()

    def run(self, x: Operation, y: Operation, gap: int) -> Ran:
        """Runs X to its gap, Y as far as it can, then both to their ends. Raises what X or Y raised."""
        gaps = Gaps(gap)
        x_runs = self.x.start(x, gaps)
        blocked = False
        try:
            gaps.await_stop(x_runs)
            y_runs = self.y.start(y)
            blocked = self._y_waits_for_x(y_runs)
        finally:
            gaps.go_on.set()
        return Ran(gaps.passed, blocked, x_runs.result(PATIENCE), y_runs.result(PATIENCE))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collects hints instead of sending them, and compares each with what is committed at that moment."""
        self.breaches.clear()
        self.sent.clear()
        with mock.patch.object(dispatch, "send", self._send):
            yield

    def _send(self, hint: dispatch.Hint) -> None:
        self.sent.append(hint)
        committed = self.observer.do(lambda: _committed_seq(hint.thread_id))
        if committed is None or committed < hint.seq:
            self.breaches.append(f"a hint for slot {hint.seq} went out while {committed} was committed")

    def check_locked(self, thread_id: str) -> None:
        """Called from within a scan: the observer must not get the lock of the thread's row."""
        if self.observer.do(lambda: _can_be_locked(thread_id)):
            self.breaches.append("the scan began while its transaction did not hold the row")

    def _y_waits_for_x(self, y_runs: Future[object]) -> bool:
        """Returns when Y has ended (`False`) or the database says that it waits for a lock of X (`True`)."""
        until = time.monotonic() + PATIENCE
        while not wait([y_runs], timeout=LOOK_SECONDS).done:
            if self._is_blocked():
                return True
            assert time.monotonic() < until, "Y neither ended nor waits for X"
        return False

    def _is_blocked(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s = ANY(pg_blocking_pids(%s))", [self.x.pid, self.y.pid])
            return bool(cursor.fetchone()[0])


def _can_be_locked(thread_id: str) -> bool:
    with transaction.atomic():
        row = ThreadMaintenance.objects.select_for_update(skip_locked=True, no_key=True).filter(pk=thread_id)
        return row.exists()


def _committed_seq(thread_id: str) -> int | None:
    return ThreadMaintenance.objects.filter(pk=thread_id).values_list("alarm_seq", flat=True).first()
