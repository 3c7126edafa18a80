"""Stable external waits: when a thread may rest although it still owes something.

A wait is stable only if what it waits for is absent; the rows say so, read by finish under the thread's lock. A
recovery report can only add autonomy. Whatever is not a stable wait keeps the alarm armed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never
from uuid import UUID

from agents.recovery.classify import Decision
from agents.states import CLAIMABLE, State
from maintenance.ports import REPAIRED, RecoveryReport, Residue

_STABLE_UNKNOWN = {Decision.AWAIT_UNKNOWN_RESOLUTION, Decision.MARK_UNKNOWN}
_WAKES = {Decision.RESUME_SUSPENDED, Decision.RESUME_WAITING_PARENT}


def is_claimable(state: str) -> bool:
    """Whether a head in this state can be claimed at once."""
    return state in CLAIMABLE


def is_stable(state: State, report: RecoveryReport | None) -> bool:
    """Whether a submission in this state, with what this pass's recovery said of it, can rest without an alarm."""
    decision = report.decision if report else None
    if decision == Decision.SETTLE_ABORTED:
        # An accepted abort still owes its settlement, whatever the state.
        return False
    match state:
        case State.SUSPENDED:
            # A wake that was decided and could not be carried out is still owed.
            return not (report and decision in _WAKES and report.disposition != REPAIRED)
        case State.JOINED:
            return decision != Decision.SETTLE_JOINED_WITH_HOST
        case State.UNKNOWN:
            return decision in _STABLE_UNKNOWN
        case State.ADMITTED:
            return decision == Decision.AWAIT_PARENT_ESTABLISHMENT
        case State.READY | State.RUNNING | State.INPUT_APPLIED | State.JOINING | State.TERMINALIZING | State.SETTLED:
            return False
        case _ as never:
            assert_never(never)


def residue(rows: Iterable[tuple[UUID, str]], reports: Sequence[RecoveryReport]) -> Residue:
    """What remains of the unsettled submissions, in queue order."""
    by_id = {report.submission_id: report for report in reports}
    listed = [(str(submission_id), State(state)) for submission_id, state in rows]
    if not listed:
        return Residue()
    autonomous = not all(_rests(place, row, by_id) for place, row in enumerate(listed))
    return Residue(nonterminal=len(listed), autonomous=autonomous, claimable_head=is_claimable(listed[0][1]))


def _rests(place: int, row: tuple[str, State], reports: Mapping[str, RecoveryReport]) -> bool:
    """Whether this row needs no alarm. A queued follower is dormant: its turn comes when the head before it wakes;
    one that recovery has not seen was admitted meanwhile, and is looked at once more."""
    submission_id, state = row
    report = reports.get(submission_id)
    if place > 0 and state is State.READY:
        return report is not None and report.decision == Decision.APPLY_INPUT
    return is_stable(state, report)
