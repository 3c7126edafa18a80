"""Children of a pool that are killed or frozen while they wait for a task, and a pool that takes nothing any more."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.process import evidence
from tests.process.harness import wait_until
from tests.process.jobs import submit

if TYPE_CHECKING:
    from tests.process.harness import Process, Processes

pytestmark = pytest.mark.process


def kill_a_waiting_child(worker: Process, position: int) -> None:
    """Kills it and returns when it is replaced."""
    before = worker.children()
    victim = before[position]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in worker.children(), "the end of the child")
    wait_until(lambda: len(worker.children()) == len(before), "the next child")


@pytest.mark.broker
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_goes_on_however_many_of_its_waiting_children_are_killed(
    concurrency: int, processes: Processes
) -> None:
    """Where they share a queue, the one that waits in front holds its lock."""
    worker = processes.worker("one", concurrency=concurrency)
    for position in range(concurrency):
        kill_a_waiting_child(worker, position)
        submit(f"t{position}")
        evidence.wait_for_rest()


class TestOneQueueForAllChildren:
    """The filesystem broker's pool, whatever broker the other tests of this run use."""

    @pytest.fixture
    def processes(self, processes: Processes) -> Processes:
        processes.settings["BROKER_URL"] = "filesystem://"
        return processes

    def test_a_worker_whose_pool_takes_nothing_any_more_ends_and_the_next_one_does_the_work(
        self, processes: Processes
    ) -> None:
        """A frozen child keeps the queue to itself: the worker cannot work, so it must not look alive."""
        worker = processes.worker("one", concurrency=1)
        (child,) = worker.children()
        os.kill(child, signal.SIGSTOP)
        submit("t")

        assert worker.exit_code() == os.EX_SOFTWARE
        assert "worker.pool_stuck" in worker.tail()
        processes.worker("two")
        evidence.wait_for_rest()
