"""Whoever accepts work and dies before the broker hears of it: the row carries the alarm, a sweep hands it over."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.process import evidence
from tests.process.board import KILL

if TYPE_CHECKING:
    from tests.process.board import Board
    from tests.process.harness import Processes

pytestmark = [pytest.mark.process, pytest.mark.broker]

T = "t"
SLOW_MACHINE = timedelta(seconds=5)


def latest(maintenance: dict[str, Any]) -> timedelta:
    """The grace and one sweep interval after the slot, and what a slow machine may add."""
    return timedelta(milliseconds=maintenance["SWEEP_GRACE_MS"] + maintenance["SWEEP_INTERVAL_MS"]) + SLOW_MACHINE


def test_l20_work_accepted_by_a_process_killed_before_it_published_begins_after_the_grace(
    processes: Processes, board: Board, maintenance: dict[str, Any]
) -> None:
    processes.worker("one")
    board.order("dispatch:before-publish", KILL, T)
    assert processes.act("submit", thread_id=T).exit_code() == -signal.SIGKILL

    evidence.wait_for_rest()
    first = evidence.runs(T)[0]
    grace = timedelta(milliseconds=maintenance["SWEEP_GRACE_MS"])
    assert first.due_at is not None
    assert grace <= first.started_at - first.due_at < latest(maintenance)
    assert first.trigger == "sweep"


def test_c3_work_accepted_by_a_process_that_ends_in_an_earlier_commit_hook_begins_after_the_grace(
    processes: Processes, maintenance: dict[str, Any]
) -> None:
    processes.worker("one")
    assert processes.act("submit_and_die_in_an_earlier_hook", thread_id=T).exit_code() == 9

    evidence.wait_for_rest()
    first = evidence.runs(T)[0]
    assert first.due_at is not None
    assert first.started_at - first.due_at < latest(maintenance)
