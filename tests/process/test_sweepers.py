"""The sweep and its triggers: two at once, killed ones, one without beat, and what it does to queues nobody reads."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.db.models import F, Sum

from maintenance import clock, doctor, status
from maintenance.doctor import Level
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.testing import recorded_hints
from tests import commands
from tests.process import evidence
from tests.process.board import KILL
from tests.process.harness import messages_in, wait_until
from tests.process.jobs import submit

if TYPE_CHECKING:
    from celery import Celery

    from tests.process.board import Board
    from tests.process.harness import Process, Processes

pytestmark = pytest.mark.process

T = "t"


def make_due(count: int, *, named: str = "t", ahead: timedelta = timedelta()) -> None:
    """Makes threads whose slot was never handed over."""
    at = clock.now() + ahead
    ThreadMaintenance.objects.bulk_create(
        ThreadMaintenance(thread_id=f"{named}{number}", alarm_at=at, alarm_seq=1) for number in range(count)
    )


class TestTogether:
    """Sweeps within one grace: what was handed over is not yet presumed lost."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {**maintenance, "SWEEP_GRACE_MS": 60_000}

    def test_l40_two_sweeps_at_once_hand_each_slot_over_once(self, processes: Processes, board: Board) -> None:
        make_due(1_000)
        pair = [processes.act("sweep_until_nothing_is_left", transport="recording", gate="together") for _ in range(2)]

        assert sum(sum(process.value()) for process in pair) == 1_000
        handed_over = Counter(hint["thread"] for hint in board.notes("hint"))
        assert len(handed_over) == 1_000
        assert set(handed_over.values()) == {1}


class TestKilled:
    """A sweep that dies again and again."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {**maintenance, "SWEEP_GRACE_MS": 100, "SWEEP_GRACE_DOUBLINGS": 0}

    def test_l5_five_killed_sweeps_leave_nothing_in_the_way_of_the_sixth(
        self, processes: Processes, board: Board
    ) -> None:
        make_due(6)
        board.order("sweep:claimed", KILL, always=True)
        for killed in range(1, 6):

            def dies() -> bool:
                return processes.act("sweep_once", transport="recording").exit_code() == -signal.SIGKILL

            wait_until(dies, f"sweep {killed} to find what the last one had claimed, and die")
        board.withdraw("sweep:claimed")

        wait_until(lambda: processes.act("sweep_once", transport="recording").value() == 6, "the sixth sweep")


@pytest.mark.broker
def test_l41_without_beat_a_worker_finds_a_lost_message_by_itself(processes: Processes) -> None:
    processes.worker("one")
    with recorded_hints():
        submit(T)
    lost_at = clock.now()

    evidence.wait_for_rest()
    assert evidence.runs(T)[0].trigger == "sweep"
    assert evidence.runs(T)[0].started_at - lost_at < timedelta(seconds=5)


def test_a4_alarms_far_ahead_never_become_messages(processes: Processes, board: Board) -> None:
    make_due(500, ahead=timedelta(hours=1))
    make_due(1, named="due")

    assert processes.act("sweep_once", transport="recording").value() == 1
    assert [hint["thread"] for hint in board.notes("hint")] == ["due0"]


def memory_of(worker: Process) -> int:
    """Resident kilobytes of the worker's main process."""
    status_of = Path(f"/proc/{worker.pid}/status").read_text()
    (line,) = [line for line in status_of.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


@pytest.mark.broker
def test_a4_a_worker_that_sweeps_beside_many_far_alarms_holds_none_of_them(processes: Processes, board: Board) -> None:
    """Ten jobs, each found by a sweep of its own, prove that it sweeps all the while."""
    make_due(5_000, named="far", ahead=timedelta(hours=1))
    one = processes.worker("one")
    for number in range(10):
        if number == 2:
            warm = memory_of(one)
        with recorded_hints():
            submit(f"due{number}")
        wait_until(lambda number=number: board.notes("done", thread=f"due{number}"), "a sweep")  # type: ignore[misc]

    assert {note["thread"] for note in board.notes("received")} == {f"due{number}" for number in range(10)}
    assert memory_of(one) < warm + 20_000
    far = ThreadMaintenance.objects.filter(thread_id__startswith="far")
    assert (far.filter(hint_seq=None).count(), far.count()) == (5_000, 5_000)


@pytest.mark.broker
def test_d3_a_queue_that_nobody_reads_grows_by_one_message_per_thread_and_doubled_grace(
    processes: Processes, celery_app: Celery, maintenance: dict[str, Any]
) -> None:
    """The worker sweeps and reads only the control queue."""
    make_due(50)
    began = clock.now()
    processes.worker("one", queues="maintenance.control")
    wait_until(lambda: not ThreadMaintenance.objects.filter(hint_attempts__lt=2).exists(), "two hints for every thread")

    grace = maintenance["SWEEP_GRACE_MS"] / 1_000
    sent = ThreadMaintenance.objects.aggregate(sum=Sum("hint_attempts"))["sum"]
    graces = (clock.now() - began).total_seconds() / grace
    assert messages_in(celery_app) <= sent <= 50 * (log2(graces + 1) + 1)
    assert ThreadMaintenance.objects.filter(processed=F("dirty")).count() == 0, "sent is not started"
    told = commands.maintenance("status", "--check")
    assert told.code == 1
    assert "50 threads are overdue" in told.out
    assert "50 handed over, not started: queue 'maintenance'" in told.out
    examined = {finding.id: finding for finding in doctor.examine()}
    assert examined["workers.heartbeat"].level is Level.OK, "the worker lives and sweeps"
    assert examined["sweep.age"].level is Level.OK
    assert "not started: queue 'maintenance'" in examined["work.overdue"].text
    assert "The queue 'maintenance' holds " in examined["broker.queue.maintenance"].text
    assert "holds 0 " not in examined["broker.queue.maintenance"].text


@pytest.mark.postgres
def test_d1_a_worker_that_consumes_nothing_still_leaves_the_work_to_whoever_comes(
    processes: Processes, board: Board, celery_app: Celery
) -> None:
    """Its consumer is cancelled, as after a reconnect gone wrong; what is due shows, and an inline sweep does it."""
    processes.worker("deaf")
    celery_app.control.cancel_consumer("maintenance", destination=["deaf@process"], reply=True)
    for number in range(5):
        submit(f"t{number}")
    wait_until(lambda: messages_in(celery_app) >= 5, "messages that nobody takes")

    late = status.usual_lateness()
    wait_until(lambda: status.health(late).overdue == 5, "two sweep intervals")
    told = commands.maintenance("status", "--check")
    assert told.code == 1
    assert "5 threads are overdue, the oldest by" in told.out
    assert "5 handed over, not started: queue 'maintenance'" in told.out
    examined = {finding.id: finding for finding in doctor.examine()}
    assert examined["workers.heartbeat"].level is Level.OK, "it looks alive"
    assert examined["work.overdue"].level is Level.WARNING

    assert commands.maintenance("sweep", "--inline").code == 0
    assert (PassRun.objects.count(), status.health(late).ok) == (5, True)
    assert board.notes("answer") == [], "Celery had no part in it"
