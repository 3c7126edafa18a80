"""A worker told to stop: its pass yields at a boundary, its waiting messages go back, another worker goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maintenance import clock
from tests.process import evidence
from tests.process.harness import messages_in, wait_until
from tests.process.jobs import UNTIL_DRAINED, accept_for, submit

if TYPE_CHECKING:
    from celery import Celery

    from tests.process.board import Board
    from tests.process.harness import Processes

pytestmark = [pytest.mark.process, pytest.mark.broker]

T = "t"

EARLY_TOLERANCE = timedelta(milliseconds=20)


class TestWithTheLeaseOfProduction:
    """So that nobody can go on because a lease expired."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        lease = {"LEASE_TTL_MS": 30_000, "LEASE_RENEWAL_MS": 10_000, "LEASE_SELF_CANCEL_MS": 24_000}
        return {**maintenance, **lease}

    def test_t09_a_pass_told_to_stop_yields_and_another_worker_goes_on_at_once(
        self, processes: Processes, board: Board
    ) -> None:
        one = processes.worker("one")
        board.order("body", UNTIL_DRAINED)
        submit(T)
        wait_until(lambda: board.notes("body"), "the body")
        processes.worker("two")
        one.terminate()

        evidence.wait_for_rest()
        assert one.exit_code(within=60) == 0
        yielded, went_on = evidence.runs(T)
        assert (yielded.outcome, yielded.settled) == ("ran", 0)
        assert (went_on.outcome, went_on.settled) == ("ran", 1)
        assert went_on.started_at - yielded.finished_at < timedelta(seconds=5)


def test_l46_a_message_that_waits_in_a_stopping_worker_goes_back_and_runs_elsewhere(
    processes: Processes, board: Board, celery_app: Celery
) -> None:
    """The other worker has no timer: nobody but the message itself can have brought the pass."""
    one = processes.worker("one", timer=False)
    due = clock.now() + timedelta(seconds=5)
    accept_for(T, due)
    wait_until(lambda: board.notes("received", thread=T), "the message to arrive")
    one.terminate()
    assert one.exit_code() == 0
    assert messages_in(celery_app) == 1

    processes.worker("two", timer=False)
    evidence.wait_for_rest()
    assert [run.trigger for run in evidence.runs(T)] == ["alarm"]
    assert evidence.runs(T)[0].started_at >= due - EARLY_TOLERANCE
