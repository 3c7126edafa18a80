"""The one outcome of a submission: its record, its row, and reading both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from agents import hotpath, ledger, log, records, succession
from agents.canonical import Json
from agents.errors import MAX_FAILURE, MAX_TAG, AppendConflict, StateConflict, UnknownSubmission
from agents.log import Batch, Sealed
from agents.models import Submission
from agents.records import Failure, NewRecord, SubmissionSettled
from agents.states import Ending, Outcome, State
from agents.succession import Concluded
from maintenance.errors import bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What an accepted submission came to."""

    settlement_id: str
    submission_id: UUID
    thread_id: str
    agent: str
    queue_sequence: int
    outcome: Outcome
    result: Any
    """What the handler returned, as plain JSON; `None` unless completed."""
    failure: Failure | None
    """Why it failed; `None` unless failed."""
    attempts: int
    settled_at: datetime


def batch(
    submission_id: UUID,
    outcome: Outcome,
    *,
    run: str | None,
    result: Json | None = None,
    failure: Failure | None = None,
    with_records: tuple[NewRecord, ...] = (),
) -> Batch:
    """The batch that records an outcome; `with_records` come before the settlement, in the same append."""
    payload = SubmissionSettled(
        submission=str(submission_id),
        receipt=records.receipt_id(submission_id),
        outcome=outcome,
        run=run,
        **({} if result is None else {"result": result}),
        failure=failure,
    )
    identity = records.settlement_id(submission_id)
    return Batch(f"submission-{identity}", [*with_records, NewRecord(identity, payload)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The end of a submission and of everything that joined its run."""

    submission_id: UUID
    outcome: Outcome
    run: str | None
    number: int
    """The attempt that it ends with."""
    ending: Ending
    transition: str = "settle"
    result: Json | None = None
    failure: Failure | None = None
    joined: Sequence[UUID] = ()
    """Settled in the same commit with the same outcome, in queue order."""


def conclude(end: Conclusion, append: Callable[[Batch], None], *, with_records: tuple[NewRecord, ...] = ()) -> None:
    """Writes records and final rows of a submission and of those that joined it, in the caller's fenced transaction.

    Raises `StateConflict`, and the caller's transaction must be rolled back, if one of them cannot be settled.
    """
    append(batch_of(end, with_records))
    finalize(end.submission_id, end.outcome, end.number, end.ending, transition=end.transition)
    for joined in end.joined:
        finalize(joined, end.outcome, 0, end.ending, transition="settle_joined")


def conclude_run(thread_id: str, end: Conclusion, sealed: Sealed) -> Concluded | None:
    """As `conclude`, for a run that nobody joined, in one statement that also looks at the queue it leaves.

    `sealed` is `batch_of` the conclusion. `None`, and nothing is written, if this database has no such statement or
    the log is not as expected: `conclude` then does it, or finds out why not. Raises as `conclude`.
    """
    if end.joined or end.transition != "settle" or not hotpath.serves():
        return None
    done = succession.conclude(thread_id, sealed, end.submission_id, end.outcome, end.number, end.ending)
    if done is not None and done.records < len(sealed.texts):
        raise AppendConflict(AppendConflict.RECORD_IDENTITY, "a record id is already in the log")
    if done is not None and not done.settled:
        raise _not_allowed(end.transition)
    return done


def batch_of(end: Conclusion, with_records: tuple[NewRecord, ...]) -> Batch:
    """The batch that records this end; `with_records` come before the settlements."""
    own = batch(
        end.submission_id,
        end.outcome,
        run=end.run,
        result=end.result,
        failure=end.failure,
        with_records=with_records,
    )
    return Batch(own.batch_id, [*own.records, *(_of_joined(end, joined) for joined in end.joined)])


def _of_joined(end: Conclusion, joined: UUID) -> NewRecord:
    payload = SubmissionSettled(
        submission=str(joined),
        receipt=records.receipt_id(joined),
        outcome=end.outcome,
        run=end.run,
        host=str(end.submission_id),
        failure=end.failure,
    )
    return NewRecord(records.settlement_id(joined), payload)


def failed(tag: str, message: str) -> Failure:
    """A failure within its bounds."""
    return Failure(error_tag=bounded(tag, MAX_TAG) or "UnknownError", message=bounded(message, MAX_FAILURE))


def finalize(submission_id: UUID, outcome: Outcome, number: int, ending: Ending, *, transition: str = "settle") -> None:
    """Makes the row agree with the settlement record, in the same transaction. Raises `StateConflict`."""
    if not ledger.settle(submission_id, outcome, number, ending, transition=transition):
        raise _not_allowed(transition)


def _not_allowed(transition: str) -> StateConflict:
    return StateConflict(f"the submission's state does not allow {transition!r}; nothing was settled")


def read(submission_id: UUID) -> Settlement | None:
    """The settlement, or `None` while the submission is still owed. Raises `UnknownSubmission`."""
    row = Submission.objects.filter(pk=submission_id).defer("input").first()
    if row is None:
        raise UnknownSubmission(f"there is no submission {submission_id}")
    if row.state != State.SETTLED:
        return None
    record = log.find(row.thread_id, records.settlement_id(submission_id))
    if record is None:
        raise StateConflict("the row is settled and the log has no settlement; run `verify` on the thread")
    payload = record.payload
    return Settlement(
        settlement_id=record.record_id,
        submission_id=row.pk,
        thread_id=row.thread_id,
        agent=row.agent,
        queue_sequence=row.queue_sequence,
        outcome=Outcome(payload["outcome"]),
        result=payload.get("result"),
        failure=Failure.model_validate(payload["failure"]) if "failure" in payload else None,
        attempts=row.attempts,
        settled_at=row.settled_at or datetime.fromisoformat(record.at),
    )
