"""A worker's timer and the forks of its pool children keep out of each other's way."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
import warnings
from contextlib import closing
from typing import TYPE_CHECKING

from maintenance.sweeper import between_forks

if TYPE_CHECKING:
    from pathlib import Path

FORKS = 40
PATIENCE_SECONDS = 10.0


def fork_and_ask() -> bool:
    """Forks; whether the child could begin a step of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        pid = os.fork()
    if pid == 0:
        os._exit(0 if between_forks.acquire(blocking=False) else 1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


def test_a_child_never_inherits_a_step_that_is_under_way() -> None:
    assert fork_and_ask() is True
    assert between_forks.locked() is False


def test_a_fork_waits_for_the_step_that_is_under_way() -> None:
    forked = threading.Event()

    def fork() -> None:
        fork_and_ask()
        forked.set()

    with between_forks:
        thread = threading.Thread(target=fork)
        thread.start()
        assert forked.wait(0.2) is False
    assert forked.wait(10) is True
    thread.join()


def fork_and_read(path: Path) -> bool:
    """Forks; whether the child could read the database and end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        with closing(sqlite3.connect(path)) as database:
            database.execute("SELECT count(*) FROM t").fetchall()
        os._exit(0)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        os.sched_yield()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def test_children_forked_beside_a_busy_timer_can_use_the_database(tmp_path: Path) -> None:
    """SQLite has locks of its own for the whole process. Without ours, some of the children hang on one for ever."""
    path, stop, busy = tmp_path / "t.sqlite3", threading.Event(), threading.Event()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (x)")

    def tick() -> None:
        while not stop.wait(0.001):
            with between_forks, closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA synchronous = OFF")
                busy.set()
                for _ in range(5):
                    database.execute("INSERT INTO t VALUES (1)")
                    database.commit()
                busy.clear()

    timer = threading.Thread(target=tick)
    timer.start()
    try:
        for _ in range(FORKS):
            busy.wait(PATIENCE_SECONDS)
            assert fork_and_read(path)
    finally:
        stop.set()
        timer.join()
