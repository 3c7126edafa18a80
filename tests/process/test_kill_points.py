"""SIGKILL at every failpoint of maintenance, in a real process; then a new worker goes on and all comes to rest.

The cells are made from the failpoints' own list: a new failpoint without its cell fails here.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from maintenance.conf import get_settings
from maintenance.failpoints import EXTENSIONS, REFERENCE
from maintenance.models import MutationLease, ThreadMaintenance
from maintenance.testing import recorded_hints
from tests.process import evidence
from tests.process.board import FAIL, KILL, PAUSE
from tests.process.jobs import Job, Outcome, submit

if TYPE_CHECKING:
    from tests.process.board import Board
    from tests.process.harness import Process, Processes

pytestmark = pytest.mark.process

T = "t"

MOST_PASSES = 6
"""What a dead pre-armed mutator may cost: one pass per scan interval until its lease ends, and the real ones."""

MUTATION_POINTS = {
    "maintenance:dirty:before": False,
    "maintenance:dirty:after": False,
    "maintenance:mutation:armed": False,
    "maintenance:mutation:finished": False,
    "commit:after": True,
    "dispatch:before-publish": True,
    "dispatch:after-publish": True,
}
"""Where a mutator dies, and whether its job was accepted by then."""

PREARMED_POINTS = {
    "maintenance:dirty:before": False,
    "maintenance:dirty:after": True,
    "maintenance:mutation:armed": True,
}
"""Where a pre-armed mutation dies before its body, and whether the thread was armed by then."""

ENSURE_POINTS = ("maintenance:ensure:before", "maintenance:ensure:after")

PASS_POINTS = {
    "delivery:received": (False, False, False),
    "maintenance:begin:before": (False, False, False),
    "delivery:before-lease": (False, False, False),
    "maintenance:begin:after": (True, False, False),
    "maintenance:finish:before": (True, True, False),
    "lease:release:before": (True, True, False),
    "maintenance:finish:after": (False, True, True),
}
"""Where a pass dies, and what is durable by then: the lease, the job's outcome, the acknowledgement."""

RENEWAL_POINTS = ("lease:renew:before", "lease:renew:after")

SWEEP_POINTS = ("sweep:claimed", "sweep:published")

REAPER_POINTS = ("reap:proved",)

PORTS = ("prepare", "backfill", "drain", "recovery", "body", "wave", "scan")
"""Between the failpoints a pass is in the hands of its ports; it may die in each of them."""


def killed(processes: Processes, board: Board, point: str, operation: str, **arguments: Any) -> None:
    """Has an operation die at the point, and sees that it did, there."""
    board.order(point, KILL)
    died_at(point, board, processes.act(operation, **arguments))


def died_at(point: str, board: Board, process: Process) -> None:
    assert process.exit_code() == -signal.SIGKILL
    assert [hit["pid"] for hit in board.hits(point)] == [process.pid]


def due_thread() -> int:
    """Accepts one job of which the broker was never told; the slot's sequence."""
    with recorded_hints():
        submit(T)
    ThreadMaintenance.objects.update(hint_seq=None)
    return evidence.row_of(T).alarm_seq


def new_worker_brings_it_to_rest(processes: Processes) -> None:
    processes.worker("successor", pool="solo")
    evidence.wait_for_rest()


def test_every_failpoint_of_maintenance_has_its_cell() -> None:
    cells = {
        *MUTATION_POINTS,
        *PREARMED_POINTS,
        *ENSURE_POINTS,
        *PASS_POINTS,
        *RENEWAL_POINTS,
        *SWEEP_POINTS,
        *REAPER_POINTS,
    }
    assert cells == {*REFERENCE, *EXTENSIONS}


@pytest.mark.parametrize(("point", "accepted"), MUTATION_POINTS.items())
def test_m01_a_killed_mutation_is_whole_or_was_never_there(
    point: str, accepted: bool, processes: Processes, board: Board
) -> None:
    killed(processes, board, point, "submit", thread_id=T)

    assert Job.objects.exists() is accepted
    assert ThreadMaintenance.objects.exists() is accepted
    if not accepted:
        submit(T)  # the caller got no answer and tries again
    new_worker_brings_it_to_rest(processes)


@pytest.mark.parametrize(("point", "armed"), PREARMED_POINTS.items())
def test_m01_a_prearmed_mutation_killed_before_its_body_leaves_an_alarm_from_its_arming_on(
    point: str, armed: bool, processes: Processes, board: Board
) -> None:
    killed(processes, board, point, "submit_prearmed", thread_id=T)

    assert ThreadMaintenance.objects.filter(alarm_at__isnull=False).exists() is armed
    assert MutationLease.objects.exists() is armed
    submit(T)  # the caller got no answer and tries again
    new_worker_brings_it_to_rest(processes)
    assert len(evidence.runs(T)) <= MOST_PASSES


def test_m01_a_prearmed_mutation_killed_after_its_body_loses_nothing(processes: Processes, board: Board) -> None:
    point = "maintenance:mutation:finished"
    died_at(point, board, processes.act("submit_prearmed", thread_id=T, die_at=point))

    assert Job.objects.exists()
    assert MutationLease.objects.exists()
    new_worker_brings_it_to_rest(processes)
    assert len(evidence.runs(T)) <= MOST_PASSES


@pytest.mark.parametrize("point", ENSURE_POINTS)
def test_m01_a_killed_ensure_is_whole_or_repeated(point: str, processes: Processes, board: Board) -> None:
    Job.objects.create(thread_id=T)
    killed(processes, board, point, "ensure_alarm", thread_id=T)

    processes.act("ensure_alarm", thread_id=T).value()
    new_worker_brings_it_to_rest(processes)


@pytest.mark.parametrize(("point", "durable"), PASS_POINTS.items())
def test_m02_a_pass_killed_at_any_point_is_taken_up_by_a_new_worker(
    point: str, durable: tuple[bool, bool, bool], processes: Processes, board: Board
) -> None:
    """What was in a transaction (M-06: also the whole finish) is rolled back; what was committed stays."""
    killed(processes, board, point, "deliver", thread_id=T, seq=due_thread())

    row = evidence.row_of(T)
    assert (row.lease_token is not None, Outcome.objects.exists(), not row.is_dirty) == durable
    new_worker_brings_it_to_rest(processes)


def test_m02_a_pass_killed_while_it_records_its_failure_is_taken_up_by_a_new_worker(
    processes: Processes, board: Board
) -> None:
    board.order("body", FAIL)
    killed(processes, board, "lease:release:before", "deliver", thread_id=T, seq=due_thread())

    new_worker_brings_it_to_rest(processes)
    assert evidence.outcomes(T) == ["worker_lost", "ran"], "the failure itself was rolled back"


def test_m05_a_pass_killed_between_its_end_and_its_hint_comes_back_when_its_backoff_is_over(
    processes: Processes, board: Board
) -> None:
    board.order("body", FAIL)
    killed(processes, board, "dispatch:before-publish", "deliver", thread_id=T, seq=due_thread())
    retry_at = evidence.row_of(T).alarm_at
    assert retry_at is not None

    new_worker_brings_it_to_rest(processes)
    assert evidence.outcomes(T) == ["failed", "ran"]
    assert evidence.runs(T)[1].started_at >= retry_at - get_settings().early_tolerance


@pytest.mark.parametrize("point", RENEWAL_POINTS)
def test_m02_a_pass_killed_by_its_renewal_is_taken_up_by_a_new_worker(
    point: str, processes: Processes, board: Board
) -> None:
    board.order("body", PAUSE)
    killed(processes, board, point, "deliver", thread_id=T, seq=due_thread())

    new_worker_brings_it_to_rest(processes)
    assert len(board.notes("body")) == 2


@pytest.mark.parametrize("point", SWEEP_POINTS)
def test_l43_what_a_killed_sweep_had_claimed_is_handed_over_again(
    point: str, processes: Processes, board: Board
) -> None:
    due_thread()
    killed(processes, board, point, "sweep_once")

    new_worker_brings_it_to_rest(processes)


def test_m02_a_reaper_killed_over_a_proven_death_leaves_it_to_the_next(processes: Processes, board: Board) -> None:
    killed(processes, board, "maintenance:begin:after", "deliver", thread_id=T, seq=due_thread())
    killed(processes, board, "reap:proved", "sweep_once")

    new_worker_brings_it_to_rest(processes)
    assert evidence.outcomes(T) == ["worker_lost", "ran"]


class TestWithAllPorts:
    """A pass that has publication, projection and messages to serve."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {
            **maintenance,
            "PUBLICATION": ["tests.process.jobs.Sink"],
            "PROJECTION": "tests.process.jobs.Index",
            "MESSAGES": "tests.process.jobs.Outbox",
        }

    @pytest.mark.parametrize("port", PORTS)
    def test_m02_a_pass_killed_inside_any_port_is_taken_up_by_a_new_worker(
        self, port: str, processes: Processes, board: Board
    ) -> None:
        killed(processes, board, port, "deliver", thread_id=T, seq=due_thread())

        new_worker_brings_it_to_rest(processes)

    def test_m03_a_pass_killed_after_prepare_prepares_the_same_generation_again(
        self, processes: Processes, board: Board
    ) -> None:
        killed(processes, board, "recovery", "deliver", thread_id=T, seq=due_thread())

        new_worker_brings_it_to_rest(processes)
        assert [note["generation"] for note in board.notes("prepared")] == [2, 2]
