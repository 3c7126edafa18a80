"""A ceiling of passes per hour and thread, for work that always asks to run again at once (field report O9)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from maintenance import operations, tasks
from maintenance.delivery import Outcome
from maintenance.models import OperatorAction, PassRun
from maintenance.ports import Residue
from maintenance.testing import deliver, run_due_passes
from tests.factories import MS, make_row, row_of
from tests.marks import maintenance_database
from tests.statements import counted_statements

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("sent")]

RAN, PARKED = Outcome.RAN, Outcome.PARKED
MINUTE = timedelta(minutes=1)


@pytest.fixture
def greedy(stage: Stage, frozen: FrozenClock, settings: Settings) -> Stage:
    """A thread whose every pass settles something and leaves more to do at once; it may have five in an hour."""
    settings.MAINTENANCE = {**settings.MAINTENANCE, "PASSES_PER_HOUR": 5}
    stage.runtime.settled = 1
    stage.ledger.residue = Residue(nonterminal=1, autonomous=True, claimable_head=True)
    make_row(4, 3, 1, 0)
    return stage


def outcomes(passes: int, frozen: FrozenClock, every: timedelta = MINUTE) -> list[Outcome]:
    """What comes of so many deliveries, one after the other."""
    came = []
    for _ in range(passes):
        came.append(deliver("t").outcome)
        frozen.at += every
    return came


def test_o9_at_the_ceiling_a_thread_is_paused_with_the_reason(greedy: Stage, frozen: FrozenClock) -> None:
    assert [result.outcome for result in run_due_passes()] == [RAN] * 5 + [PARKED]

    row, noted = row_of(), OperatorAction.objects.get()
    assert (row.paused_at, row.lease_token, row.last_outcome) == (frozen.at, None, "parked")
    assert (row.dirty, row.processed, row.alarm_at) == (4, 3, frozen.at)
    assert (noted.action, noted.actor) == ("pause", "wakeful")
    assert noted.reason == row.last_error == "5 passes within an hour, as many as PASSES_PER_HOUR allows"


def test_o9_going_on_in_place_does_not_get_past_the_ceiling(
    greedy: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    assert tasks.run_pass("t", 1) == "ran"

    assert PassRun.objects.count() == 5
    assert [hint.seq for hint in sent] == [row_of().alarm_seq]
    assert tasks.run_pass("t", sent[0].seq) == "parked"
    assert greedy.calls.count("head") == 5


def test_o9_passes_that_are_an_hour_old_count_no_more(greedy: Stage, frozen: FrozenClock) -> None:
    assert outcomes(20, frozen, every=12 * MINUTE) == [RAN] * 20
    assert outcomes(1, frozen, every=MS) == [RAN]
    assert outcomes(1, frozen) == [PARKED]


def test_o9_a_resume_begins_the_count_again(greedy: Stage, frozen: FrozenClock) -> None:
    outcomes(6, frozen)
    operations.resume("t", actor="ann", reason="an import, it is fine")
    frozen.at += MINUTE

    assert outcomes(6, frozen) == [RAN] * 5 + [PARKED]


def test_o9_a_forced_pass_runs_all_the_same(greedy: Stage, frozen: FrozenClock) -> None:
    outcomes(6, frozen)

    assert deliver("t", forced=True).outcome is RAN
    assert row_of().paused_at is not None


def test_o9_other_threads_have_a_ceiling_of_their_own(greedy: Stage, frozen: FrozenClock) -> None:
    outcomes(6, frozen)
    make_row(4, 3, 1, 0, thread_id="other")

    assert deliver("other").outcome is RAN


def test_without_a_ceiling_any_number_of_passes_runs_and_none_is_counted(
    greedy: Stage, frozen: FrozenClock, settings: Settings
) -> None:
    settings.MAINTENANCE = {**settings.MAINTENANCE, "PASSES_PER_HOUR": None}

    with counted_statements() as counted:
        assert outcomes(30, frozen, every=MS) == [RAN] * 30

    assert [sql for sql in counted.sql if "passrun" in sql and not sql.startswith(("INSERT", "WITH noted"))] == []
