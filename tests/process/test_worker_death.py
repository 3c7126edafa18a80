"""Workers that die in the middle of a pass: who notices, how soon, and what an owner on another machine costs."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maintenance import clock
from maintenance.models import WorkerHeartbeat
from tests.process import evidence
from tests.process.board import KILL, PAUSE, STUCK
from tests.process.harness import wait_until
from tests.process.jobs import Job, submit

if TYPE_CHECKING:
    from datetime import datetime

    from tests.process.board import Board, Note
    from tests.process.harness import Processes

pytestmark = pytest.mark.process

T = "t"

LONG_LEASE = {"LEASE_TTL_MS": 30_000, "LEASE_RENEWAL_MS": 10_000, "LEASE_SELF_CANCEL_MS": 24_000}
"""The lease of production: whoever goes on sooner did not wait for its expiry."""

SHORT_LEASE = {"LEASE_TTL_MS": 1_000, "LEASE_RENEWAL_MS": 300, "LEASE_SELF_CANCEL_MS": 800}

WELL_BEFORE_EXPIRY = timedelta(seconds=5)


def body_of(thread_id: str, processes: Processes, board: Board) -> Note:
    """Accepts a job whose body waits, and returns the note of its start."""
    board.order("body", PAUSE, thread_id)
    submit(thread_id)
    wait_until(lambda: board.hits("body", thread=thread_id), f"the body of {thread_id}")
    return board.hits("body", thread=thread_id)[0]


def resumed_after(death: datetime) -> timedelta:
    """From the death to the begin of the pass that took over, in the database's time."""
    evidence.wait_for_rest()
    assert evidence.outcomes(T)[0] == "worker_lost"
    return evidence.runs(T)[1].started_at - death


@pytest.mark.broker
class TestWithTheLeaseOfProduction:
    """The reaper proves a death on its own machine and does not wait for the lease."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {**maintenance, **LONG_LEASE}

    def test_l44_a_killed_pool_child_costs_a_moment_not_a_lease(self, processes: Processes, board: Board) -> None:
        """The redelivered message is refused: the slot has moved since it was sent. The dead child's place is free."""
        processes.worker("one", concurrency=1)
        body = body_of(T, processes, board)
        death = clock.now()
        os.kill(body["pid"], signal.SIGKILL)

        assert timedelta() < resumed_after(death) < WELL_BEFORE_EXPIRY
        assert len(board.notes("body")) == 2

    def test_l45_a_killed_worker_is_replaced_by_another_in_a_moment(self, processes: Processes, board: Board) -> None:
        one = processes.worker("one")
        body_of(T, processes, board)
        processes.worker("two")
        death = clock.now()
        one.kill()

        assert timedelta() < resumed_after(death) < WELL_BEFORE_EXPIRY
        assert len(board.notes("body")) == 2

    def test_l11_a_thread_whose_worker_died_accepts_more_work_at_once(self, processes: Processes, board: Board) -> None:
        one = processes.worker("one")
        body_of(T, processes, board)
        one.kill()
        before = evidence.row_of(T)
        submit(T)

        after = evidence.row_of(T)
        assert (after.dirty, after.lease_token) == (before.dirty + 1, before.lease_token)
        processes.worker("two")
        evidence.wait_for_rest()
        assert Job.objects.filter(done=True).count() == 2

    def test_l7_a_sweep_from_cron_repairs_what_dead_workers_left(self, processes: Processes, board: Board) -> None:
        """The worker that comes later has no timer of its own: only cron's sweep can have told it."""
        one = processes.worker("one", timer=False)
        body_of(T, processes, board)
        one.kill()

        assert processes.act("sweep_once").value() == 0, "the reaper's own hint is enough"
        assert evidence.row_of(T).lease_token is None
        processes.worker("two", timer=False)
        evidence.wait_for_rest()


class TestOnAnotherMachine:
    """Nothing can be proved about a process of another machine: the lease's expiry decides."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {**maintenance, **SHORT_LEASE}

    def test_l4_expiry_alone_finds_a_dead_worker_whatever_became_of_its_records(
        self, processes: Processes, board: Board
    ) -> None:
        """The next worker even bears the dead one's name."""
        elsewhere = processes.worker("one", machine="elsewhere")
        body_of(T, processes, board)
        elsewhere.kill()
        WorkerHeartbeat.objects.all().delete()
        expires_at = evidence.row_of(T).lease_expires_at
        assert expires_at is not None

        processes.worker("one")
        evidence.wait_for_rest()
        assert evidence.outcomes(T) == ["lease_lost", "ran"]
        assert evidence.runs(T)[1].started_at >= expires_at

    def test_a_body_that_was_frozen_past_its_lease_can_commit_nothing(self, processes: Processes, board: Board) -> None:
        """G3: its renewal froze with it; it wakes up beside its successor and is refused."""
        processes.worker("one", concurrency=2)
        frozen = body_of(T, processes, board)["pid"]
        os.kill(frozen, signal.SIGSTOP)
        wait_until(lambda: board.notes("done"), "the successor's outcome")

        board.open("body", T)
        os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: board.notes("answer", outcome="lease_lost"), "the end of the frozen pass")
        evidence.wait_for_rest()
        assert [note["epoch"] for note in board.notes("body")] == [1, 2]
        assert [note["epoch"] for note in board.notes("done")] == [2]

    def test_g3_l8_a_body_that_blocks_for_three_leases_is_never_taken_over(
        self, processes: Processes, board: Board
    ) -> None:
        """It sleeps in foreign code and then keeps the interpreter busy; renewal goes on in its own thread."""
        processes.worker("one")
        processes.worker("two")
        board.order("body", "blocked")
        submit(T)

        evidence.wait_for_rest()
        assert len(board.notes("body")) == 1
        assert evidence.outcomes(T) == ["ran"]
        run = evidence.runs(T)[0]
        assert run.finished_at - run.started_at >= timedelta(milliseconds=3 * SHORT_LEASE["LEASE_TTL_MS"])


def test_a_worker_whose_main_process_is_killed_takes_its_pool_with_it(processes: Processes, board: Board) -> None:
    """Linux ends the pool's children with their parent, so the orphan is as dead to the reaper as any."""
    one = processes.worker("one")
    body_of(T, processes, board)
    one.kill_main()
    processes.worker("two")

    evidence.wait_for_rest()
    assert evidence.outcomes(T) == ["worker_lost", "ran"]


@pytest.mark.broker
@pytest.mark.parametrize("reject_on_worker_lost", [True, False])
@pytest.mark.parametrize("acks_late", [True, False])
def test_b5_acknowledgement_settings_change_only_the_delay(
    acks_late: bool, reject_on_worker_lost: bool, processes: Processes, board: Board
) -> None:
    """Early acknowledgement is refused at start-up; a host may set it later all the same, and loses nothing."""
    options = {"acks_late": acks_late, "reject_on_worker_lost": reject_on_worker_lost}
    processes.worker("one", task_options=options)
    board.order("body", KILL)
    submit(T)

    evidence.wait_for_rest()
    assert len(board.notes("body")) == 2
    assert evidence.outcomes(T) == ["worker_lost", "ran"]


@pytest.mark.broker
class TestPoison:
    """A pass that kills its process each time."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {**maintenance, "QUARANTINE_STARTS": 3}

    def test_b6_a_pass_that_kills_its_worker_each_time_is_quarantined_and_stops_nobody_else(
        self, processes: Processes, board: Board
    ) -> None:
        board.order("body", KILL, "poison", always=True)
        processes.worker("one", concurrency=2)
        for thread_id in ("poison", *(f"healthy-{n}" for n in range(9))):
            submit(thread_id)

        wait_until(lambda: evidence.row_of("poison").quarantined_at, "the quarantine")
        wait_until(lambda: Job.objects.filter(done=True).count() == 9, "the healthy jobs")
        poison = evidence.row_of("poison")
        assert poison.quarantine_reason.startswith("worker lost")
        assert len(board.notes("body", thread="poison")) == 3
        assert poison.dirty > poison.processed, "what it owes stays owed"


class TestHardLimit:
    """A body that no soft limit reaches is killed by Celery's hard limit."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        limits = {"HARD_LIMIT_MS": 1_000, "PASS_DEADLINE_MS": 900, "SOFT_YIELD_MS": 800, "IN_PLACE_MS": 500}
        return {**maintenance, **SHORT_LEASE, "LEASE_TTL_MS": 800, "LEASE_SELF_CANCEL_MS": 700, **limits}

    def test_g1_a_pass_killed_by_the_hard_limit_leaves_no_lock_wherever_it_was(
        self, processes: Processes, board: Board
    ) -> None:
        """Right after its claim, in its body, and while it lets go of the thread.

        The limits are the worker's own: this process, which publishes the messages, has those of production.
        """
        stuck_at = {"claimed": "maintenance:begin:after", "working": "body", "releasing": "lease:release:before"}
        for thread_id, point in stuck_at.items():
            board.order(point, STUCK, thread_id)
        processes.worker("one", concurrency=3)
        for thread_id in stuck_at:
            submit(thread_id)

        evidence.wait_for_rest()
        for thread_id, point in stuck_at.items():
            assert len(board.hits(point, thread=thread_id)) == 1
            lost, ran = evidence.outcomes(thread_id)
            assert (lost in {"worker_lost", "lease_lost"}, ran) == (True, "ran"), "by its death, or by the expiry"
