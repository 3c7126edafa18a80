"""One decision for each unsettled submission: a pure, ordered table over what the row, the log and people say.

First match wins, most settled first. `explain` and recovery share it, so what an operator reads is what the next
pass does. Rows of the reference that our single database makes impossible are listed in
`docs/adr/0009-windows-that-one-transaction-closes.md`, each with the test that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from agents.states import Outcome, State, Wait


class Decision(StrEnum):
    """What recovery makes of a submission."""

    NO_ACTION = "no-action"
    """It is settled."""
    FINALIZE_FROM_HISTORY = "finalize-from-history"
    """The log holds its settlement, the row does not say so: the log is right."""
    SETTLE_JOINED_WITH_HOST = "settle-joined-with-host"
    """The run that it joined has settled, and it with it."""
    AWAIT_HOST = "await-host"
    """It settles with the run that it joined."""
    SETTLE_ABORTED = "settle-aborted"
    """Somebody asked for its end, and nothing runs: it is settled as aborted, wherever it stands in the queue."""
    MARK_UNKNOWN = "mark-unknown"
    """A call was prepared and has no recorded result: it is reconciled, or shown to a person."""
    APPLY_UNKNOWN_RESOLUTIONS = "apply-unknown-resolutions"
    """Every unknown call has an answer: the answers become records and the run goes on."""
    AWAIT_UNKNOWN_RESOLUTION = "await-unknown-resolution"
    """A person has to say what became of a call."""
    RESUME_SUSPENDED = "resume-suspended"
    """What it waited for is there, or its time has come."""
    AWAIT_ANSWER = "await-answer"
    """It waits for an approval, an event or a moment."""
    AWAIT_CHILD = "await-child"
    """It waits for submissions of other threads."""
    RESUME_WAITING_PARENT = "resume-waiting-parent"
    """Every child that it waited for has settled."""
    AWAIT_PARENT_ESTABLISHMENT = "await-parent-establishment"
    """A child whose parent has not recorded the lineage yet."""
    SETTLE_EXHAUSTED = "settle-exhausted"
    """Its attempts ended too often without progress: it is settled as failed."""
    APPLY_INPUT = "apply-input"
    """It waits for its turn; the next attempt begins it."""
    RESUME_FROM_LAST_STEP = "resume-from-last-step"
    """It was begun; the next attempt goes on after its last record."""
    CLOSE_CHILDREN = "close-children"
    """Its outcome is decided; attached children still close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is known of one submission: its row, and what the log, its attempts and people say."""

    submission_id: UUID
    state: State
    queue_sequence: int = 0
    attempts: int = 0
    first_sequence: int | None = None
    recorded_outcome: Outcome | None = None
    """The outcome of its settlement record, if the log has one."""
    host_outcome: Outcome | None = None
    """The outcome of the run that it joined, once that has settled."""
    aborted: bool = False
    """An abort was accepted."""
    open_calls: tuple[str, ...] = ()
    """Calls that were prepared, have no result, and may not simply be run again."""
    answered_calls: bool = True
    """Every unknown call has a resolution (also when there is none)."""
    waits_for: Wait | None = None
    waits_on: str = ""
    wake_at: datetime | None = None
    answered: bool = False
    """What a suspended submission waits for is there, or its time has come."""
    last_progress: int = 0
    """Sequence of the last record of real progress in its run."""
    fruitless: int = 0
    """Attempts that ended since then, without having been asked to."""
    budget: int
    """How many of those are allowed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    decision: Decision
    applies: Callable[[Facts], bool]


def _in(*states: State) -> Callable[[Facts], bool]:
    return lambda facts: facts.state in states


RULES: tuple[Rule, ...] = (
    Rule(Decision.NO_ACTION, _in(State.SETTLED)),
    Rule(Decision.FINALIZE_FROM_HISTORY, lambda facts: facts.recorded_outcome is not None),
    Rule(Decision.CLOSE_CHILDREN, _in(State.TERMINALIZING)),
    Rule(
        Decision.SETTLE_JOINED_WITH_HOST,
        lambda facts: facts.state is State.JOINED and facts.host_outcome is not None,
    ),
    Rule(Decision.AWAIT_HOST, _in(State.JOINED)),
    Rule(Decision.SETTLE_ABORTED, lambda facts: facts.aborted),
    Rule(
        Decision.MARK_UNKNOWN,
        lambda facts: facts.state in {State.INPUT_APPLIED, State.UNKNOWN} and bool(facts.open_calls),
    ),
    Rule(Decision.APPLY_UNKNOWN_RESOLUTIONS, lambda facts: facts.state is State.UNKNOWN and facts.answered_calls),
    Rule(Decision.AWAIT_UNKNOWN_RESOLUTION, _in(State.UNKNOWN)),
    Rule(
        Decision.RESUME_WAITING_PARENT,
        lambda facts: facts.state is State.SUSPENDED and facts.waits_for is Wait.CHILD and facts.answered,
    ),
    Rule(Decision.AWAIT_CHILD, lambda facts: facts.state is State.SUSPENDED and facts.waits_for is Wait.CHILD),
    Rule(Decision.RESUME_SUSPENDED, lambda facts: facts.state is State.SUSPENDED and facts.answered),
    Rule(Decision.AWAIT_ANSWER, _in(State.SUSPENDED)),
    Rule(Decision.AWAIT_PARENT_ESTABLISHMENT, _in(State.ADMITTED)),
    Rule(
        Decision.SETTLE_EXHAUSTED,
        lambda facts: facts.state is State.INPUT_APPLIED and facts.fruitless >= facts.budget,
    ),
    Rule(Decision.APPLY_INPUT, _in(State.READY)),
    Rule(Decision.RESUME_FROM_LAST_STEP, _in(State.INPUT_APPLIED)),
)
"""First match wins; every state has a row without a condition, so the table is total."""


def classify(facts: Facts) -> Decision:
    """The decision for one submission: pure, total, without a clock."""
    return next(rule.decision for rule in RULES if rule.applies(facts))
