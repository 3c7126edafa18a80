"""Aborting: an intent that wakes the thread, and the settlement that it leads to wherever the submission stands.

A running attempt looks for the intent at its boundaries; everything that does not run is settled by recovery, in any
place of the queue. Abort and completion may cross: whichever commits its settlement first stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from agents import calls, failpoints, ledger, log, records, settlement
from agents.attempt import Attempt
from agents.errors import AbortRefused, UnknownSubmission
from agents.log import Batch
from agents.models import AbortIntent, Approval, ApprovalDecision, Submission
from agents.records import AbortRequested, NewRecord
from agents.recovery.classify import Facts
from agents.states import Ending, Outcome, State
from maintenance import api as maintenance
from maintenance import clock
from maintenance.ports import REPAIRED, Work

UNKNOWN_REASON = "the submission was aborted while this call was open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """An accepted abort. Repeating the request gives the first one's author and reason."""

    submission_id: UUID
    author: str
    reason: str
    requested_at: datetime
    replayed: bool = field(default=False, compare=False)
    """It had been asked for before."""


def abort(
    submission_id: UUID, *, author: str, reason: str, also: Callable[[Submission, datetime], None] | None = None
) -> Abort:
    """Asks for a submission's end and wakes its thread; `also` is part of the same commit, unless it is a repetition.

    Raises `UnknownSubmission`; `AbortRefused` if it is settled (its outcome stands) or has joined another run (abort
    that one instead). Accepting is no promise of the outcome: a run that completes first stays completed.
    """
    thread_id = Submission.objects.filter(pk=submission_id).values_list("thread_id", flat=True).first()
    if thread_id is None:
        raise UnknownSubmission(f"there is no submission {submission_id}")
    failpoints.hit(failpoints.ABORT_BEFORE, thread_id)
    # Race closed: a settlement or a join that commits between the look at the state and the intent.
    with maintenance.mutation(thread_id) as mutation:
        row = Submission.objects.get(pk=submission_id)
        accepted = intend(row, author, reason, mutation.now)
        if also is not None and not accepted.replayed:
            also(row, mutation.now)
        failpoints.hit(failpoints.ABORT_WRITTEN, thread_id)
    failpoints.hit(failpoints.ABORT_AFTER, thread_id)
    return accepted


def intend(row: Submission, author: str, reason: str, now: datetime) -> Abort:
    """Stores the intent unless there is one, in the caller's mutation. Raises `AbortRefused`."""
    if row.state == State.SETTLED:
        raise AbortRefused(f"the submission is settled: {row.outcome}")
    if row.state == State.JOINED:
        raise AbortRefused(f"the submission has joined the run of {row.host_id}; abort that one")
    intent, new = AbortIntent.objects.get_or_create(
        submission=row, defaults={"author": author[:200], "reason": reason, "requested_at": now}
    )
    return Abort(
        submission_id=row.pk,
        author=intent.author,
        reason=intent.reason,
        requested_at=intent.requested_at,
        replayed=not new,
    )


def settle_running(attempt: Attempt) -> None:
    """Ends the run of this attempt as aborted: the request, its open calls, its settlement, in one commit."""
    failpoints.hit(failpoints.ABORT_SETTLE_BEFORE, attempt.thread_id)
    with attempt.ending() as append:
        records_before = _records(attempt.claimed.submission_id)
        settlement.conclude(
            settlement.Conclusion(
                submission_id=attempt.claimed.submission_id,
                outcome=Outcome.ABORTED,
                run=attempt.run,
                number=attempt.claimed.number,
                ending=Ending.SETTLED,
                joined=attempt.joined(),
            ),
            append,
            with_records=records_before,
        )
        failpoints.hit(failpoints.ABORT_SETTLE_WRITTEN, attempt.thread_id)
    failpoints.hit(failpoints.ABORT_SETTLE_AFTER, attempt.thread_id)


def settle_idle(work: Work, facts: Facts) -> str:
    """Settles what does not run, in any state and any place of the queue."""
    began = facts.first_sequence is not None
    failpoints.hit(failpoints.ABORT_SETTLE_BEFORE, work.thread_id)
    # Race closed: a takeover; and whatever else could settle it needs the same lock.
    with work.fenced(progress=True):
        settlement.conclude(
            settlement.Conclusion(
                submission_id=facts.submission_id,
                outcome=Outcome.ABORTED,
                run=records.run_id(facts.submission_id) if began else None,
                number=facts.attempts,
                ending=Ending.LOST,
                transition="settle" if facts.state is State.INPUT_APPLIED else "settle_idle",
                joined=tuple(ledger.joined_to(work.thread_id, facts.submission_id)) if began else (),
            ),
            lambda batch: _append(work, batch),
            with_records=_records(facts.submission_id),
        )
        failpoints.hit(failpoints.ABORT_SETTLE_WRITTEN, work.thread_id)
    failpoints.hit(failpoints.ABORT_SETTLE_AFTER, work.thread_id)
    return REPAIRED


def _records(submission_id: UUID) -> tuple[NewRecord, ...]:
    """The request and the calls that nobody will hear of any more; open questions to people are withdrawn."""
    intent = AbortIntent.objects.get(pk=submission_id)
    now = clock.now()
    asked = Approval.objects.filter(submission_id=submission_id, decision="")
    asked.update(decision=ApprovalDecision.WITHDRAWN, decided_at=now, decided_by=intent.author, reason=intent.reason)
    request = AbortRequested(submission=str(submission_id), author=intent.author, reason=intent.reason)
    return (NewRecord(records.abort_id(submission_id), request), *calls.audit(submission_id, UNKNOWN_REASON))


def _append(work: Work, batch: Batch) -> None:
    log.append_at_tail(work.thread_id, batch, epoch=work.epoch)
