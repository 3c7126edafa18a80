"""A sweep driven by beat alone: real beat, a real worker that has no timer, one forgotten alarm."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from maintenance.models import ThreadMaintenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.process, pytest.mark.broker]

INERT = {"RUNTIME": "maintenance.ports.InertRuntime", "LEDGER": "maintenance.ports.InertLedger"}
WORKER = ["-A", "tests.process.without_sweep_timer", "worker", "--pool", "solo"]
QUEUES = ["--queues", "maintenance,maintenance.control", "--without-gossip", "--without-mingle"]
BEAT = ["-A", "config", "beat", "--pidfile="]


@contextmanager
def running(arguments: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Run one Celery program beside the test; it has ended when this has."""
    process = subprocess.Popen([sys.executable, "-m", "celery", *arguments], env=environment)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(holds: Callable[[], bool], *, seconds: float) -> bool:
    """Look every tenth of a second whether the condition holds; tell whether it came true in time."""
    pause = Event()
    for _ in range(int(seconds * 10)):
        if holds():
            return True
        pause.wait(0.1)
    return False


def test_beat_alone_brings_an_alarm_that_nobody_published_to_a_pass(
    worker_environment: dict[str, str],
) -> None:
    environment = {**worker_environment, "MAINTENANCE": json.dumps(INERT)}
    ThreadMaintenance.objects.create(thread_id="forgotten", dirty=1, processed=0, alarm_at=timezone.now(), alarm_seq=1)

    def acknowledged() -> bool:
        return ThreadMaintenance.objects.filter(thread_id="forgotten", processed=1).exists()

    with running([*WORKER, *QUEUES], environment):
        assert not wait_until(acknowledged, seconds=4), "without beat nothing finds it"

        with running(BEAT, environment):
            assert wait_until(acknowledged, seconds=30)
