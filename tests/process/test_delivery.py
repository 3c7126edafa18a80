"""Messages that arrive twice, at once, for different threads, or not at all when they carry an eta."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maintenance import clock
from maintenance.models import PassRun
from maintenance.testing import recorded_hints
from tests.process import evidence
from tests.process.board import PAUSE
from tests.process.harness import wait_until
from tests.process.jobs import SHORT_WORK, Job, accept_for, submit

if TYPE_CHECKING:
    from tests.process.board import Board
    from tests.process.harness import Processes

pytestmark = pytest.mark.process

T = "t"


def accepted_unheard(count: int) -> list[str]:
    """Accepts one job in each of so many new threads; no hint goes out. All slots have sequence 1."""
    threads = [f"t{number}" for number in range(count)]
    with recorded_hints():
        for thread_id in threads:
            submit(thread_id)
    return threads


def test_l24_of_two_deliveries_at_the_same_instant_exactly_one_runs(processes: Processes) -> None:
    """200 rounds; the processes wait for each other before every delivery."""
    threads = accepted_unheard(200)
    pair = [processes.act("deliver_rounds", threads=threads, seq=1) for _ in range(2)]

    for answers in zip(*(process.value() for process in pair), strict=True):
        assert list(answers).count("ran") == 1
        assert set(answers) <= {"ran", "superseded", "busy", "cleared"}
    evidence.wait_for_rest()
    assert PassRun.objects.count() == len(threads)


@pytest.mark.broker
def test_l24_a_message_that_the_broker_delivers_twice_runs_once(processes: Processes, board: Board) -> None:
    threads = accepted_unheard(20)
    processes.worker("one", timer=False)
    processes.worker("two", timer=False)
    processes.act("publish_twice", threads=threads, seq=1).value()

    wait_until(lambda: len(board.notes("answer")) == 2 * len(threads), "the answers to all messages")
    evidence.wait_for_rest()
    assert len(board.notes("answer", outcome="ran")) == len(threads)
    assert len(board.notes("body")) == len(threads)


@pytest.mark.broker
def test_l25_two_threads_run_in_parallel(processes: Processes, board: Board) -> None:
    """Each body waits until both have begun."""
    processes.worker("one", concurrency=2)
    for thread_id in ("left", "right"):
        board.order("body", PAUSE, thread_id)
        submit(thread_id)
    wait_until(lambda: len(board.hits("body")) == 2, "both bodies at once")
    for thread_id in ("left", "right"):
        board.open("body", thread_id)

    evidence.wait_for_rest()


@pytest.mark.broker
def test_j1_a_pass_that_arms_its_own_thread_three_times_ends_after_the_third(
    processes: Processes, board: Board
) -> None:
    """Each job may start only after a durable timer; a last one is found by a sweep alone."""
    processes.worker("one")
    start = clock.now()
    timers = [start + timedelta(seconds=0.4 * step) for step in (1, 2, 3)]
    for at in timers:
        submit(T, not_before=at)
    evidence.wait_for_rest()
    accepted_unheard(1)
    evidence.wait_for_rest()

    began = [run.started_at for run in evidence.runs(T) if run.settled]
    assert len(began) == len(timers)
    assert all(at <= start_of_pass for at, start_of_pass in zip(timers, began, strict=True))


@pytest.mark.broker
def test_a5_a_worker_that_took_every_early_message_does_not_keep_the_others_idle(
    processes: Processes, board: Board
) -> None:
    """What is due and still in one worker's hands is sent again, one sweep interval late, for all."""
    processes.worker("one", concurrency=1)
    due = clock.now() + timedelta(seconds=3)
    board.order("body", SHORT_WORK, always=True)
    for number in range(40):
        accept_for(f"t{number}", due)
    wait_until(lambda: len(board.notes("received")) >= 40, "one worker to hold all messages")
    processes.worker("two", concurrency=1)

    evidence.wait_for_rest()
    assert len({note["pid"] for note in board.notes("done")}) >= 2


class TestWithoutGrace:
    """No message is presumed lost within the test: only the rule for overdue etas sends one again."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {**maintenance, "SWEEP_GRACE_MS": 60_000}

    def test_a8_alarms_fire_through_a_broker_that_swallows_every_eta(self, processes: Processes) -> None:
        processes.worker("one", transport="without-eta")
        due = clock.now() + timedelta(seconds=1)
        with recorded_hints():
            for number in range(5):
                accept_for(f"t{number}", due)
        evidence.wait_for_rest()

        assert Job.objects.filter(done=True).count() == 5
        for run in PassRun.objects.all():
            assert timedelta() <= run.started_at - due < timedelta(seconds=5)
