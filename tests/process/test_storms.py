"""Many mutations through a broker that loses, doubles, delays and reorders, and workers that are killed meanwhile."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from maintenance.models import ThreadMaintenance
from tests.process import evidence
from tests.process.board import Board
from tests.process.harness import wait_until
from tests.process.jobs import SHORT_WORK, Job, submit

if TYPE_CHECKING:
    from tests.process.harness import Processes

pytestmark = [pytest.mark.process, pytest.mark.broker, pytest.mark.timeout(300)]

SEED = 20260813


def scaled(count: int) -> int:
    """A tenth on SQLite, whose writers stand in line."""
    return count // 10 if connection.vendor == "sqlite" else count


@pytest.mark.parametrize(
    ("mutations", "threads"), [(600, 40), pytest.param(10_000, 100, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
)
def test_l49_l50_a_lossy_broker_costs_latency_and_nothing_else(
    mutations: int, threads: int, processes: Processes
) -> None:
    """A fifth of the hints is dropped, a fifth doubled, all are delayed; the invariants hold at every sampled commit.

    Whatever the database refuses is typed, and the caller tries again: an untyped error would end the storm.
    """
    transport = f"lossy:{SEED}"
    for name in ("one", "two"):
        processes.worker(name, transport=transport)
    share = {"mutations": scaled(mutations) // 2, "threads": scaled(threads)}
    storms = [processes.act("storm", transport=transport, seed=SEED + n, **share) for n in range(2)]
    while any(storm.is_running() for storm in storms):
        evidence.assert_invariants()
        time.sleep(0.05)

    for storm in storms:
        storm.value()
    evidence.wait_for_rest(seconds=120)
    assert Job.objects.count() == scaled(mutations) // 8 * 8
    assert not ThreadMaintenance.objects.filter(quarantined_at__isnull=False).exists()


@pytest.mark.parametrize(
    ("kills", "seconds_between"), [(4, 0.7), pytest.param(30, 2.0, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
)
def test_m11_workers_killed_again_and_again_settle_every_job_once(
    kills: int, seconds_between: float, processes: Processes, board: Board
) -> None:
    """Supervised workers; every kill takes one of them with its whole pool."""
    board.order("body", SHORT_WORK, always=True)
    draw = random.Random(SEED)
    with processes.supervised([processes.worker("one"), processes.worker("two")]) as workers:
        for _ in range(kills):
            for number in range(50):
                submit(f"t{number}")
            done = Job.objects.filter(done=True).count()
            time.sleep(seconds_between * draw.random())
            wait_until(lambda done=done: Job.objects.filter(done=True).count() > done, "some progress")  # type: ignore[misc]
            workers[draw.randrange(2)].kill()
        evidence.wait_for_rest(seconds=120)

    assert Job.objects.filter(done=True).count() == 50 * kills
