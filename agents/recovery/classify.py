"""One decision for each unsettled submission: a pure, ordered table over what the row and the log say.

First match wins, most settled first. The names are those of the whole design; rules whose states no code can
reach yet are not in the table. Left out for good, because one transaction closes their window: input in the log
without its mark, a settlement reserved and not appended, a thread without its first record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from agents.states import Outcome, State


class Decision(StrEnum):
    """What recovery makes of a submission."""

    NO_ACTION = "no-action"
    FINALIZE_FROM_HISTORY = "finalize-from-history"
    """The log holds its settlement, the row does not say so: the log is right."""
    SETTLE_EXHAUSTED = "settle-exhausted"
    """Its attempts ended too often without progress: it is settled as failed."""
    APPLY_INPUT = "apply-input"
    """It waits for its turn (or was claimed without input); the next attempt begins it."""
    RESUME_FROM_LAST_STEP = "resume-from-last-step"
    """It was begun; the next attempt goes on after its last recorded step."""
    SETTLE_ABORTED = "settle-aborted"
    SETTLE_JOINED_WITH_HOST = "settle-joined-with-host"
    MARK_UNKNOWN = "mark-unknown"
    AWAIT_UNKNOWN_RESOLUTION = "await-unknown-resolution"
    RESUME_SUSPENDED = "resume-suspended"
    RESUME_WAITING_PARENT = "resume-waiting-parent"
    AWAIT_PARENT_ESTABLISHMENT = "await-parent-establishment"
    DEFER = "defer"
    """No rule of this release covers the state: nothing is done, nothing is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that is known of one submission: its row, and what the log and its attempts prove."""

    submission_id: UUID
    state: State
    attempts: int = 0
    first_sequence: int | None = None
    recorded_outcome: Outcome | None = None
    """The outcome of its settlement record, if the log has one."""
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


RULES: tuple[Rule, ...] = (
    Rule(Decision.NO_ACTION, lambda facts: facts.state is State.SETTLED),
    Rule(Decision.FINALIZE_FROM_HISTORY, lambda facts: facts.recorded_outcome is not None),
    Rule(
        Decision.SETTLE_EXHAUSTED,
        lambda facts: facts.state in {State.RUNNING, State.INPUT_APPLIED} and facts.fruitless >= facts.budget,
    ),
    Rule(Decision.APPLY_INPUT, lambda facts: facts.state in {State.READY, State.RUNNING}),
    Rule(Decision.RESUME_FROM_LAST_STEP, lambda facts: facts.state is State.INPUT_APPLIED),
    Rule(Decision.DEFER, lambda _: True),
)
"""First match wins."""


def classify(facts: Facts) -> Decision:
    """The decision for one submission: pure, total, without a clock."""
    return next(rule.decision for rule in RULES if rule.applies(facts))
