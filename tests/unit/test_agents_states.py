"""The table of states: what it allows, what it forbids, and that its document is made from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents.states import CLAIMABLE, TRANSITIONS, Authority, Outcome, State, as_markdown

ROOT = Path(__file__).resolve().parents[2]


def targets_of(state: State) -> set[State]:
    return {made.target for made in TRANSITIONS.values() if state in made.sources} - {state}


def test_the_document_and_the_table_agree() -> None:
    """`python -m agents.states > docs/state-machine.md` makes it again."""
    assert (ROOT / "docs" / "state-machine.md").read_text(encoding="utf-8") == as_markdown()


def test_the_document_can_be_made_from_the_shell() -> None:
    made = subprocess.run([sys.executable, "-m", "agents.states"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout == as_markdown()


def test_there_are_three_outcomes() -> None:
    assert set(Outcome) == {"completed", "failed", "aborted"}


def test_nothing_leads_out_of_settled() -> None:
    assert targets_of(State.SETTLED) == set()


@pytest.mark.parametrize("state", [state for state in State if state is not State.SETTLED])
def test_every_other_state_can_be_reached_and_left_and_ends_settled(state: State) -> None:
    assert any(made.target is state for made in TRANSITIONS.values())
    reached, grown = {state}, True
    while grown:
        wider = reached.union(*(targets_of(each) for each in reached))
        grown, reached = wider != reached, wider
    assert State.SETTLED in reached


@pytest.mark.parametrize("state", [State.SUSPENDED, State.UNKNOWN, State.JOINED, State.ADMITTED, State.SETTLED])
def test_a_blocked_head_cannot_be_claimed(state: State) -> None:
    assert state not in CLAIMABLE


def test_a_queued_and_an_interrupted_head_can_be_claimed() -> None:
    assert {State.READY, State.INPUT_APPLIED} <= CLAIMABLE


def test_admissions_come_from_the_gate_and_only_they_make_rows() -> None:
    made_rows = {made.name: made.authority for made in TRANSITIONS.values() if not made.sources}
    assert made_rows == {"admit": Authority.GATE, "admit_child": Authority.GATE}


def test_a_settlement_is_written_only_under_the_lease() -> None:
    settling = [made for made in TRANSITIONS.values() if made.target is State.SETTLED]
    assert {made.authority for made in settling} == {Authority.LEASE}


@pytest.mark.parametrize("state", State)
def test_the_document_says_of_every_state_what_it_means(state: State) -> None:
    line = next(line for line in as_markdown().splitlines() if line.startswith(f"- **`{state}`**: "))
    assert len(line) > 60
