"""A worker's timer and the forks of its pool children keep out of each other's way."""

from __future__ import annotations

import os
import threading
import warnings

from maintenance.sweeper import between_forks


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
