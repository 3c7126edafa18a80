"""The recovery classifier and the stable waits: pure tables (ledger-recovery, e; alarm-host, 10; scenarios H and N)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from agents import waits
from agents.recovery.classify import RULES, Decision, Facts, classify
from agents.states import Outcome, State, Wait
from agents.waits import Left, residue
from maintenance.ports import RecoveryReport

ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))


def facts(state: State, **known: Any) -> Facts:
    return Facts(submission_id=ONE, state=state, budget=3, **known)


def report(submission_id: UUID, decision: str, disposition: str = "deferred") -> RecoveryReport:
    return RecoveryReport(submission_id=str(submission_id), decision=decision, disposition=disposition)


def left(submission_id: UUID, state: State, *, aborted: bool = False, unanswered: int = 0) -> Left:
    return Left(
        submission_id=str(submission_id), state=state, aborted=aborted, unanswered_calls=unanswered, question=None
    )


def is_autonomous(row: Left, decision: str | None) -> bool:
    reports = [report(UUID(row.submission_id), decision)] if decision else []
    return residue([row], reports).autonomous


SUSPENDED: dict[str, Any] = {"state": State.SUSPENDED, "waits_for": Wait.APPROVAL}


@pytest.mark.parametrize(
    ("known", "decision"),
    [
        (facts(State.READY), Decision.APPLY_INPUT),
        (facts(State.INPUT_APPLIED, attempts=1, first_sequence=2), Decision.RESUME_FROM_LAST_STEP),
        (facts(State.INPUT_APPLIED, attempts=2, fruitless=2), Decision.RESUME_FROM_LAST_STEP),
        (facts(State.INPUT_APPLIED, attempts=3, fruitless=3), Decision.SETTLE_EXHAUSTED),
        (facts(State.INPUT_APPLIED, open_calls=("a",)), Decision.MARK_UNKNOWN),
        (facts(State.INPUT_APPLIED, open_calls=("a",), fruitless=9), Decision.MARK_UNKNOWN),
        (facts(State.INPUT_APPLIED, open_calls=("a",), aborted=True), Decision.SETTLE_ABORTED),
        (facts(State.UNKNOWN, answered_calls=False), Decision.AWAIT_UNKNOWN_RESOLUTION),
        (facts(State.UNKNOWN, answered_calls=False, open_calls=("b",)), Decision.MARK_UNKNOWN),
        (facts(State.UNKNOWN, answered_calls=True, open_calls=("b",)), Decision.MARK_UNKNOWN),
        (facts(State.UNKNOWN, answered_calls=True), Decision.APPLY_UNKNOWN_RESOLUTIONS),
        (facts(State.UNKNOWN, answered_calls=False, aborted=True), Decision.SETTLE_ABORTED),
        (facts(**SUSPENDED), Decision.AWAIT_ANSWER),
        (facts(**SUSPENDED, attempts=9, fruitless=9), Decision.AWAIT_ANSWER),
        (facts(**SUSPENDED, answered=True), Decision.RESUME_SUSPENDED),
        (facts(**SUSPENDED, aborted=True), Decision.SETTLE_ABORTED),
        (facts(State.SUSPENDED, waits_for=Wait.CHILD), Decision.AWAIT_CHILD),
        (facts(State.SUSPENDED, waits_for=Wait.CHILD, answered=True), Decision.RESUME_WAITING_PARENT),
        (facts(State.READY, aborted=True), Decision.SETTLE_ABORTED),
        (facts(State.JOINED), Decision.AWAIT_HOST),
        (facts(State.JOINED, aborted=True), Decision.AWAIT_HOST),
        (facts(State.JOINED, host_outcome=Outcome.FAILED), Decision.SETTLE_JOINED_WITH_HOST),
        (facts(State.ADMITTED), Decision.AWAIT_PARENT_ESTABLISHMENT),
        (facts(State.TERMINALIZING, aborted=True), Decision.CLOSE_CHILDREN),
        (facts(State.SETTLED, recorded_outcome=Outcome.COMPLETED, aborted=True), Decision.NO_ACTION),
        (facts(State.SETTLED, recorded_outcome=Outcome.COMPLETED, open_calls=("a",)), Decision.NO_ACTION),
    ],
)
def test_each_row_of_the_table(known: Facts, decision: Decision) -> None:
    assert classify(known) == decision


@pytest.mark.parametrize("state", [state for state in State if state is not State.SETTLED])
@pytest.mark.parametrize("outcome", Outcome)
def test_198_a_settlement_in_the_log_beats_every_state_and_every_budget(state: State, outcome: Outcome) -> None:
    known = facts(state, fruitless=99, aborted=True, open_calls=("a",), recorded_outcome=outcome)
    assert classify(known) == Decision.FINALIZE_FROM_HISTORY


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_decision(state: State) -> None:
    assert classify(facts(state)) in {rule.decision for rule in RULES}


@pytest.mark.parametrize(
    ("state", "decision", "autonomous"),
    [
        (State.JOINED, Decision.AWAIT_HOST, False),
        (State.JOINED, Decision.SETTLE_ABORTED, True),
        (State.SUSPENDED, Decision.SETTLE_ABORTED, True),
        (State.UNKNOWN, Decision.SETTLE_ABORTED, True),
        (State.UNKNOWN, None, True),
        (State.UNKNOWN, Decision.AWAIT_UNKNOWN_RESOLUTION, False),
        (State.UNKNOWN, Decision.MARK_UNKNOWN, False),
        (State.UNKNOWN, Decision.APPLY_UNKNOWN_RESOLUTIONS, True),
        (State.ADMITTED, None, True),
        (State.ADMITTED, Decision.AWAIT_PARENT_ESTABLISHMENT, False),
        (State.ADMITTED, Decision.APPLY_INPUT, True),
        (State.READY, Decision.APPLY_INPUT, True),
        (State.INPUT_APPLIED, Decision.RESUME_FROM_LAST_STEP, True),
        (State.TERMINALIZING, None, True),
    ],
)
def test_h_which_waits_keep_the_alarm(state: State, decision: str | None, autonomous: bool) -> None:
    assert is_autonomous(left(ONE, state, unanswered=1), decision) is autonomous


@pytest.mark.parametrize("state", [State.READY, State.INPUT_APPLIED, State.TERMINALIZING])
@pytest.mark.parametrize("decision", Decision)
def test_h14_what_can_go_on_keeps_the_alarm_whatever_recovery_said(state: State, decision: Decision) -> None:
    assert is_autonomous(left(ONE, state), decision)


@pytest.mark.parametrize("state", State)
def test_h24_every_state_is_either_a_wait_or_not(state: State) -> None:
    """A state that nobody has thought of would end in `assert_never`."""
    assert waits.is_stable(left(ONE, state, unanswered=1), None) in {True, False}


@pytest.mark.parametrize("state", [state for state in State if state not in {State.SETTLED, State.JOINED}])
def test_an_accepted_abort_is_owed_in_every_state(state: State) -> None:
    assert is_autonomous(left(ONE, state, aborted=True, unanswered=1), Decision.AWAIT_UNKNOWN_RESOLUTION)


def test_h4_a_joined_submission_whose_host_has_settled_is_owed() -> None:
    assert is_autonomous(left(ONE, State.JOINED), Decision.SETTLE_JOINED_WITH_HOST)


def test_an_unknown_call_whose_answer_came_after_recovery_is_owed() -> None:
    assert is_autonomous(left(ONE, State.UNKNOWN, unanswered=0), Decision.AWAIT_UNKNOWN_RESOLUTION)


def test_nothing_left_is_nothing_owed() -> None:
    nothing = residue([], [])
    assert (nothing.nonterminal, nothing.autonomous, nothing.claimable_head) == (0, False, False)


def test_h20_a_reported_follower_behind_a_waiting_head_is_dormant() -> None:
    rows = [left(ONE, State.UNKNOWN, unanswered=1), left(TWO, State.READY), left(THREE, State.READY)]
    seen = [
        report(ONE, Decision.AWAIT_UNKNOWN_RESOLUTION),
        report(TWO, Decision.APPLY_INPUT),
        report(THREE, Decision.APPLY_INPUT),
    ]

    rest = residue(rows, seen)

    assert (rest.nonterminal, rest.autonomous, rest.claimable_head) == (3, False, False)


def test_h21_a_follower_behind_a_child_that_awaits_its_parent_is_dormant() -> None:
    rows = [left(ONE, State.ADMITTED), left(TWO, State.READY)]
    seen = [report(ONE, Decision.AWAIT_PARENT_ESTABLISHMENT), report(TWO, Decision.APPLY_INPUT)]
    assert residue(rows, seen).autonomous is False


def test_h16_a_follower_that_recovery_did_not_see_is_looked_at_again() -> None:
    rows = [left(ONE, State.JOINED), left(TWO, State.READY)]
    assert residue(rows, []).autonomous is True


def test_h17_an_aborted_follower_behind_a_waiting_head_is_owed() -> None:
    rows = [left(ONE, State.JOINED), left(TWO, State.READY, aborted=True)]
    assert residue(rows, [report(TWO, Decision.APPLY_INPUT)]).autonomous is True


def test_a_claimable_head_is_autonomous() -> None:
    rest = residue([left(ONE, State.INPUT_APPLIED), left(TWO, State.READY)], [])
    assert (rest.autonomous, rest.claimable_head) == (True, True)
