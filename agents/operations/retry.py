"""`retry`: have a submission looked at again now, by the pass that any mutation would bring.

It overrides nothing. The pass decides by the same table as ever: a submission whose attempts are used up is settled
as failed, and one that must not be tried before a moment (a Retry-After, a backoff) waits for it. Our own backoff is
at most `RETRY_BACKOFF_CAP_MS`; whoever asked for longer had a reason that an operator here cannot see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from agents.errors import RetryRefused
from agents.naming import SubmissionLike, id_of
from agents.operations import explain, trail
from agents.operations.authorize import Actor, Operation, authorize, reason_given
from agents.recovery.classify import Decision
from agents.states import Wait
from maintenance import api as maintenance

Refusal = Literal["settled", "await-unknown-resolution", "await-approval-decision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """A retry that was accepted, and what its pass will make of it."""

    submission_id: UUID
    thread_id: str
    decision: Decision
    generation: int
    """The generation that the pass will acknowledge."""
    sentence: str
    """How the submission stood when the retry was accepted."""


def retry(submission: SubmissionLike, *, actor: Actor = None, reason: str) -> Retried:
    """Writes the retry down and makes the thread's next pass due now; a pass that runs is followed by another.

    Raises `OperationDenied`, `UnknownSubmission`, and `RetryRefused` where only somebody's answer can help; nothing
    was written then.
    """
    submission_id = id_of(submission)
    author = authorize(actor, Operation.RETRY, submission_id=submission_id)
    reason = reason_given(Operation.RETRY, reason)
    # Decided before the gate, so that a refusal leaves no generation. What changes in between costs one pass at most.
    found = explain.look_at(submission_id)
    _refuse_if_useless(found)
    before: trail.State = {"submission": str(submission_id), "state": found.state, "decision": found.decision}
    with maintenance.mutation(found.thread_id) as mutation:
        after: trail.State = {**before, "generation": mutation.generation}
        trail.note(
            Operation.RETRY,
            found.thread_id,
            actor=author,
            reason=reason,
            before=before,
            after=after,
            at=mutation.now,
        )
    return Retried(
        submission_id=submission_id,
        thread_id=found.thread_id,
        decision=found.decision,
        generation=mutation.generation,
        sentence=found.sentence,
    )


def _refuse_if_useless(found: explain.Explanation) -> None:
    """Where a pass would change nothing until a person has spoken."""
    refused: Refusal
    match found.decision:
        case Decision.NO_ACTION:
            refused, instead = "settled", "its outcome stands; submit the work again under another key"
        case Decision.AWAIT_UNKNOWN_RESOLUTION:
            refused, instead = "await-unknown-resolution", "say what became of its unknown calls (resolve)"
        case Decision.AWAIT_ANSWER if found.waits_for is Wait.APPROVAL:
            refused, instead = "await-approval-decision", "decide its approval (approve or deny)"
        case _:
            return
    raise RetryRefused(refused, f"{found.sentence[:1].lower()}{found.sentence[1:]}: {instead}")
