"""The recovery classifier and the stable waits: pure tables (ledger-recovery, e; alarm-host, 10; scenarios N)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from agents.recovery.classify import RULES, Decision, Facts, classify
from agents.states import Outcome, State
from agents.waits import is_stable, residue
from maintenance.ports import RecoveryReport

ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))


def facts(state: State, **known: Any) -> Facts:
    return Facts(submission_id=ONE, state=state, budget=3, **known)


def report(submission_id: UUID, decision: str, disposition: str = "deferred") -> RecoveryReport:
    return RecoveryReport(submission_id=str(submission_id), decision=decision, disposition=disposition)


@pytest.mark.parametrize(
    ("known", "decision"),
    [
        (facts(State.READY), Decision.APPLY_INPUT),
        (facts(State.INPUT_APPLIED, attempts=1, first_sequence=2), Decision.RESUME_FROM_LAST_STEP),
        (facts(State.INPUT_APPLIED, attempts=2, fruitless=2), Decision.RESUME_FROM_LAST_STEP),
        (facts(State.INPUT_APPLIED, attempts=3, fruitless=3), Decision.SETTLE_EXHAUSTED),
        (facts(State.SETTLED, recorded_outcome=Outcome.COMPLETED), Decision.NO_ACTION),
    ],
)
def test_each_row_of_the_table(known: Facts, decision: Decision) -> None:
    assert classify(known) == decision


@pytest.mark.parametrize("state", [state for state in State if state is not State.SETTLED])
@pytest.mark.parametrize("outcome", Outcome)
def test_198_a_settlement_in_the_log_beats_every_state_and_every_budget(state: State, outcome: Outcome) -> None:
    assert classify(facts(state, fruitless=99, recorded_outcome=outcome)) == Decision.FINALIZE_FROM_HISTORY


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_decision(state: State) -> None:
    assert classify(facts(state)) in {rule.decision for rule in RULES}


@pytest.mark.parametrize(
    ("state", "decision", "stable"),
    [
        (State.SUSPENDED, None, True),
        (State.SUSPENDED, "await-approval-decision", True),
        (State.JOINED, None, True),
        (State.UNKNOWN, None, False),
        (State.UNKNOWN, Decision.AWAIT_UNKNOWN_RESOLUTION, True),
        (State.UNKNOWN, Decision.MARK_UNKNOWN, True),
        (State.UNKNOWN, "apply-unknown-resolutions", False),
        (State.ADMITTED, None, False),
        (State.ADMITTED, Decision.AWAIT_PARENT_ESTABLISHMENT, True),
        (State.ADMITTED, "repair-readiness", False),
        (State.READY, Decision.APPLY_INPUT, False),
        (State.INPUT_APPLIED, Decision.RESUME_FROM_LAST_STEP, False),
        (State.TERMINALIZING, None, False),
        (State.SETTLED, None, False),
    ],
)
def test_which_waits_are_stable(state: State, decision: str | None, stable: bool) -> None:
    assert is_stable(state, None if decision is None else report(ONE, decision)) is stable


@pytest.mark.parametrize("state", State)
def test_an_accepted_abort_is_owed_in_every_state(state: State) -> None:
    assert is_stable(state, report(ONE, Decision.SETTLE_ABORTED)) is False


@pytest.mark.parametrize("decision", [Decision.RESUME_SUSPENDED, Decision.RESUME_WAITING_PARENT])
def test_h5_a_wake_that_was_decided_and_not_carried_out_is_owed(decision: Decision) -> None:
    assert is_stable(State.SUSPENDED, report(ONE, decision)) is False
    assert is_stable(State.SUSPENDED, report(ONE, decision, "repaired")) is True


def test_h4_a_joined_submission_whose_host_has_settled_is_owed() -> None:
    assert is_stable(State.JOINED, report(ONE, Decision.SETTLE_JOINED_WITH_HOST)) is False


def test_nothing_left_is_nothing_owed() -> None:
    left = residue([], [])
    assert (left.nonterminal, left.autonomous, left.claimable_head) == (0, False, False)


def test_a_reported_follower_behind_a_waiting_head_is_dormant() -> None:
    rows = [(ONE, "suspended"), (TWO, "ready"), (THREE, "ready")]
    seen = [report(TWO, Decision.APPLY_INPUT), report(THREE, Decision.APPLY_INPUT)]

    left = residue(rows, seen)

    assert (left.nonterminal, left.autonomous, left.claimable_head) == (3, False, False)


def test_a_follower_that_recovery_did_not_see_is_looked_at_again() -> None:
    rows = [(ONE, "suspended"), (TWO, "ready")]
    assert residue(rows, []).autonomous is True


def test_a_follower_that_is_not_queued_stands_for_itself() -> None:
    rows = [(ONE, "suspended"), (TWO, "terminalizing")]
    assert residue(rows, [report(TWO, "close-children")]).autonomous is True


def test_a_claimable_head_is_autonomous() -> None:
    left = residue([(ONE, "input_applied"), (TWO, "suspended")], [])
    assert (left.autonomous, left.claimable_head) == (True, True)
