"""`make up` supervises: what dies is started again, and nothing outlives the launcher."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from config import up

pytestmark = pytest.mark.process

LIVES_UNTIL_STOPPED = ["http.server", "0", "--bind", "127.0.0.1"]


def kill_until_replaced(child: up.Child, stop: Event) -> int:
    """Kill the child's process, wait for the next one, then end the supervision."""
    first = child.process.pid
    os.kill(first, signal.SIGKILL)
    waiting = Event()
    for _ in range(200):
        if child.process.pid != first:
            break
        waiting.wait(0.05)
    stop.set()
    return first


def test_a_child_that_is_killed_is_started_again_and_ends_with_the_rest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    child, stop = up.Child("web", LIVES_UNTIL_STOPPED), Event()
    child.start()
    with ThreadPoolExecutor(1) as helper:
        first = helper.submit(kill_until_replaced, child, stop)
        up.supervise([child], stop)

    assert child.process.pid != first.result()
    assert child.process.returncode == -signal.SIGTERM, "asked to stop, and it did"
    assert "web ended with -9" in capfd.readouterr().out


def test_the_whole_system_is_web_two_workers_and_beat() -> None:
    assert [child.name for child in up.children()] == ["web", "worker one", "worker two", "beat"]
