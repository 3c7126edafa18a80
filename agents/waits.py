"""Stable external waits: when a thread may rest although it still owes something.

A wait is stable only if what it waits for is absent; the rows say so, read by finish under the thread's lock. A
recovery report can only add autonomy. Whatever is not a stable wait keeps the alarm armed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from agents import answers
from agents.answers import Question
from agents.recovery.classify import Decision
from agents.states import CLAIMABLE, State
from maintenance.ports import RecoveryReport, Residue
from maintenance.rearm import earliest


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """One unsettled submission, as finish reads it under the thread's lock."""

    submission_id: str
    state: State
    aborted: bool
    unanswered_calls: int
    """Unknown calls that nobody has answered."""
    question: Question | None
    """What it waits for, if it is suspended."""


def is_claimable(state: str) -> bool:
    """Whether a head in this state can be claimed at once."""
    return state in CLAIMABLE


def residue(left: Sequence[Left], reports: Sequence[RecoveryReport]) -> Residue:
    """What remains of the unsettled submissions, in queue order."""
    if not left:
        return Residue()
    by_id = {report.submission_id: report for report in reports}
    autonomous = not all(_rests(place, row, by_id.get(row.submission_id)) for place, row in enumerate(left))
    return Residue(
        nonterminal=len(left),
        autonomous=autonomous,
        claimable_head=is_claimable(left[0].state),
        next_due=earliest(*(row.question.wake_at for row in left if row.question)),
    )


def _rests(place: int, row: Left, report: RecoveryReport | None) -> bool:
    """Whether this row needs no alarm. A queued follower is dormant: its turn comes when the head before it wakes;
    one that recovery has not seen was admitted meanwhile, and is looked at once more."""
    if place > 0 and row.state is State.READY and not row.aborted:
        return report is not None and report.decision == Decision.APPLY_INPUT
    return is_stable(row, report)


def is_stable(row: Left, report: RecoveryReport | None) -> bool:
    """Whether this submission, with what this pass's recovery said of it, can rest without an alarm."""
    decision = report.decision if report else None
    if decision == Decision.SETTLE_ABORTED or (row.aborted and row.state is not State.JOINED):
        # An accepted abort still owes its settlement, whatever the state.
        return False
    match row.state:
        case State.SUSPENDED:
            return row.question is not None and not answers.is_there(row.question)
        case State.JOINED:
            return decision != Decision.SETTLE_JOINED_WITH_HOST
        case State.UNKNOWN:
            return decision in _STABLE_UNKNOWN and row.unanswered_calls > 0
        case State.ADMITTED:
            return decision == Decision.AWAIT_PARENT_ESTABLISHMENT
        case State.READY | State.INPUT_APPLIED | State.TERMINALIZING | State.SETTLED:
            return False
        case _ as never:
            assert_never(never)


_STABLE_UNKNOWN = {Decision.AWAIT_UNKNOWN_RESOLUTION, Decision.MARK_UNKNOWN}
"""Decisions with which an unknown call waits for a person: it was shown to one, in this pass or before."""
