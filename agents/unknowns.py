"""Calls of which nobody recorded an outcome: looked up if there is a way, else shown to a person, never guessed.

A call is marked by its row, a record, and the state of its submission, in one fenced transaction. It is answered by
a person through the gate (`agents.resolutions`), and a pass turns the answers into records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NoReturn
from uuid import UUID

from agents import calls, canonical, failpoints, ledger, log, metrics, reconciling, records, settlement, tools
from agents.attempt import Attempt, Suspended
from agents.canonical import Json
from agents.errors import StateConflict
from agents.log import Batch
from agents.models import CallStatus, ResolutionKind, Submission, ToolCall, ToolKind, UnknownResolution
from agents.records import NewRecord, Payload, RepairAnnotated, ToolCallResolved, ToolCallSettled
from agents.recovery.classify import Decision, Facts
from agents.states import Ending, State, sources
from agents.tools import Answer, Done, Failed, NeverStarted, SafeRetry, StillUnknown
from maintenance import clock
from maintenance.errors import bounded
from maintenance.ports import REPAIRED, Work

MARKED = "unknown"
"""Disposition of a review that left something for a person."""

INTERRUPTED = "the attempt that made the call ended without recording a result"
RECONCILER = "reconciler"
RECONCILED_TAG = "ReconciledAsFailed"
RESOLVED_TAG = "ResolvedAsFailed"

Append = Callable[[Batch], None]


def give_up(attempt: Attempt, name: str, reason: str) -> NoReturn:
    """Shows an open call of a running attempt to a person; the attempt ends, by `Suspended`."""
    submission_id = attempt.claimed.submission_id
    failpoints.hit(failpoints.UNKNOWN_BEFORE, attempt.thread_id)
    # Race closed: a takeover while the tool ran; who no longer holds the thread marks nothing.
    with attempt.writing(f"call {name!r}", progress=False) as append:
        row = ToolCall.objects.get(submission_id=submission_id, turn=0, call=name)
        _mark(row, reason, append)
        _block(submission_id)
        ledger.end_attempt(submission_id, attempt.claimed.number, Ending.SUSPENDED)
        failpoints.hit(failpoints.UNKNOWN_WRITTEN, attempt.thread_id)
    metrics.attempts.labels(Ending.SUSPENDED).inc()
    failpoints.hit(failpoints.UNKNOWN_AFTER, attempt.thread_id)
    stopped = Suspended()
    attempt.stop(stopped)
    raise stopped


@dataclass(frozen=True, slots=True)
class Review:
    """What came of looking at the open calls of a submission."""

    marked: bool
    """Some are left for a person."""
    settled: bool
    """Some turned out to have ended."""


def review(work: Work, facts: Facts) -> Review:
    """What recovery does with open calls: asks the reconcilers, marks what is left."""
    uncertain: list[tuple[ToolCall, str]] = []
    settled = False
    for row in open_calls(facts.submission_id):
        work.checkpoint()
        answer = reconciling.ask(work, row) if row.kind == ToolKind.RECONCILED else StillUnknown(INTERRUPTED)
        if isinstance(answer, StillUnknown):
            uncertain.append((row, answer.reason))
        else:
            _accept(work, row, answer)
            settled = settled or isinstance(answer, Done | Failed)
    if uncertain:
        _mark_all(work, facts, uncertain)
    return Review(marked=bool(uncertain), settled=settled)


def apply(work: Work, facts: Facts) -> str:
    """Turns the answers about every unknown call into records and lets the run go on, in one commit."""
    failpoints.hit(failpoints.APPLY_BEFORE, work.thread_id)
    # Race closed: a takeover between the look at the answers and their records. New answers need the same lock.
    with work.fenced(progress=True):
        append = _appending(work)
        answered = _answers(facts.submission_id)
        for row, given in answered:
            _apply_one(row, given, append)
        Submission.objects.filter(pk=facts.submission_id, state__in=sources("resolve")).update(
            state=State.INPUT_APPLIED
        )
        detail = f"{len(answered)} answered" if answered else "no call was unknown any more"
        append(_annotation(work, facts, Decision.APPLY_UNKNOWN_RESOLUTIONS, detail))
        failpoints.hit(failpoints.APPLY_WRITTEN, work.thread_id)
    failpoints.hit(failpoints.APPLY_AFTER, work.thread_id)
    return REPAIRED


def open_calls(submission_id: UUID) -> Iterable[ToolCall]:
    """Prepared calls without a result that may not simply be run again, in the order in which they were made."""
    rows = ToolCall.objects.filter(submission_id=submission_id, status=CallStatus.PREPARED)
    return list(rows.exclude(kind__in=tools.RERUNNABLE).order_by("pk"))


def _accept(work: Work, row: ToolCall, answer: Answer) -> None:
    """Records what a reconciler found out, at once: the next one may take long or fail."""
    ended = isinstance(answer, Done | Failed)
    failpoints.hit(failpoints.RECONCILE_BEFORE, work.thread_id)
    # Race closed: a takeover while the reconciler looked; whoever holds the thread now has asked again.
    with work.fenced(progress=ended):
        append = _appending(work)
        match answer:
            case Done(result=result):
                _settle(row, Json(result), "completed-with-result", RECONCILER, "it was done", append)
            case Failed(error=error):
                failure = _failure(RECONCILED_TAG, error)
                _settle(row, failure, "failed-with-error", RECONCILER, "it had failed", append)
            case NeverStarted():
                _permit(row, "never-started", RECONCILER, "it never started", append)
            case SafeRetry():
                _permit(row, "safe-retry", RECONCILER, "it may be repeated", append)
        failpoints.hit(failpoints.RECONCILE_WRITTEN, work.thread_id)
    failpoints.hit(failpoints.RECONCILE_AFTER, work.thread_id)


def _mark_all(work: Work, facts: Facts, uncertain: list[tuple[ToolCall, str]]) -> None:
    failpoints.hit(failpoints.UNKNOWN_BEFORE, work.thread_id)
    # Race closed: a takeover since the calls were read. Unfenced, a mark could reach a run that has gone on.
    with work.fenced():
        append = _appending(work)
        for row, reason in uncertain:
            _mark(row, reason, append)
        _block(facts.submission_id)
        append(_annotation(work, facts, Decision.MARK_UNKNOWN, ", ".join(row.call for row, _ in uncertain)))
        failpoints.hit(failpoints.UNKNOWN_WRITTEN, work.thread_id)
    failpoints.hit(failpoints.UNKNOWN_AFTER, work.thread_id)


def _mark(row: ToolCall, reason: str, append: Append) -> None:
    """One batch for each call and try: a later mark is a fact of its own."""
    record = calls.unknown_record(row, reason)
    append(Batch(record.record_id, [record]))
    _move(row, CallStatus.UNKNOWN, unknown_reason=bounded(reason, calls.MAX_REASON))
    metrics.tool_calls.labels("unknown").inc()


def _block(submission_id: UUID) -> None:
    """The queue waits for a person; it may wait already, for another call of the same run."""
    rows = Submission.objects.filter(pk=submission_id, state__in=sources("mark_unknown"))
    if (
        not rows.update(state=State.UNKNOWN)
        and not Submission.objects.filter(pk=submission_id, state=State.UNKNOWN).exists()
    ):
        raise StateConflict("the submission's state does not allow 'mark_unknown'; nothing was marked")


def _answers(submission_id: UUID) -> list[tuple[ToolCall, UnknownResolution]]:
    """Each unknown call with the answer about its present try."""
    rows = list(ToolCall.objects.filter(submission_id=submission_id, status=CallStatus.UNKNOWN).order_by("pk"))
    given = {
        (one.tool_call_id, one.tries): one
        for one in UnknownResolution.objects.filter(tool_call__in=[r.pk for r in rows])
    }
    return [(row, given[row.pk, row.tries]) for row in rows]


def _apply_one(row: ToolCall, given: UnknownResolution, append: Append) -> None:
    match ResolutionKind(given.resolution):
        case ResolutionKind.COMPLETED:
            _settle(row, Json(given.result), "completed-with-result", given.author, given.reason, append)
        case ResolutionKind.FAILED:
            failure = _failure(RESOLVED_TAG, str(canonical.parse(given.result)))
            _settle(row, failure, "failed-with-error", given.author, given.reason, append)
        case ResolutionKind.NEVER_STARTED:
            _permit(row, "never-started", given.author, given.reason, append)
        case ResolutionKind.SAFE_RETRY:
            _permit(row, "safe-retry", given.author, given.reason, append)
        case ResolutionKind.ABORT:
            # One write stores it with its abort intent, and an abort comes before every resolution.
            raise StateConflict("an abort was resolved without its intent; run verify on the thread")


def _settle(row: ToolCall, result: Json, resolution: str, author: str, reason: str, append: Append) -> None:
    """The call has ended; the record of its result and the one that says who knows go together."""
    by: Literal["reconciler", "operator"] = "reconciler" if author is RECONCILER else "operator"
    settled = ToolCallSettled(
        run=records.run_id(row.submission_id),
        turn=row.turn,
        call=row.call,
        tries=row.tries,
        tool=row.tool,
        result=result,
        is_failure=resolution == "failed-with-error",
        by=by,
    )
    resolved = _resolved(row, resolution, author, reason)
    record = NewRecord(calls.record_id("tool-settled", row), settled)
    append(Batch(record.record_id, [record, resolved]))
    _move(row, CallStatus.SETTLED)


def _permit(row: ToolCall, resolution: str, author: str, reason: str, append: Append) -> None:
    """The try had no effect that matters: the next attempt makes another one."""
    record = _resolved(row, resolution, author, reason)
    append(Batch(record.record_id, [record]))
    _move(row, CallStatus.PERMITTED)


def _resolved(row: ToolCall, resolution: str, author: str, reason: str) -> NewRecord:
    payload = ToolCallResolved.model_validate(
        {
            "run": records.run_id(row.submission_id),
            "turn": row.turn,
            "call": row.call,
            "tries": row.tries,
            "resolution": resolution,
            "author": author,
            "reason": reason,
        }
    )
    return NewRecord(calls.record_id("tool-resolved", row), payload)


def _failure(tag: str, message: str) -> Json:
    return canonical.encode(settlement.failed(tag, message).model_dump())


def _move(row: ToolCall, status: CallStatus, **changed: str) -> None:
    ToolCall.objects.filter(pk=row.pk).update(status=status, updated_at=clock.now(), **changed)


def _annotation(work: Work, facts: Facts, decision: Decision, detail: str) -> Batch:
    payload: Payload = RepairAnnotated(submission=str(facts.submission_id), decision=decision, detail=detail)
    record = NewRecord(records.repair_id(facts.submission_id, decision, work.epoch), payload)
    return Batch(record.record_id, [record])


def _appending(work: Work) -> Append:
    def append(batch: Batch) -> None:
        log.append_at_tail(work.thread_id, batch, epoch=work.epoch)

    return append
