"""Carries decisions out, each in one fenced transaction, and says in the log what it repaired."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from agents import aborts, calls, failpoints, ledger, log, metrics, records, settlement, suspension, unknowns
from agents.attempt import logger
from agents.errors import AppendConflict, StateConflict
from agents.log import Batch
from agents.records import NewRecord, RepairAnnotated
from agents.recovery import age
from agents.recovery.classify import Decision, Facts, classify
from agents.recovery.evidence import gather
from agents.states import Ending, Outcome, State
from maintenance.errors import described
from maintenance.ports import REPAIRED, RecoveryReport, Work

DEFERRED = "deferred"
NONE = "none"

EXHAUSTED_TAG = "AttemptsExhausted"
LEFT_OPEN = "the submission failed while this call was open"


def recover(work: Work) -> Sequence[RecoveryReport]:
    """One report for each unsettled submission, in queue order.

    A submission whose repair fails does not stop the others; if it is the head, the pass fails, because nothing
    may be claimed over it. A run that is too old to go on with is looked at last: it parks the thread, and what could
    be repaired has been.
    """
    reports: list[RecoveryReport] = []
    begun: Facts | None = None
    for place, facts in enumerate(gather(work.thread_id)):
        work.checkpoint()
        decision = classify(facts)
        begun = facts if decision is Decision.RESUME_FROM_LAST_STEP else begun
        try:
            disposition = _carry_out(work, facts, decision)
        except (AppendConflict, StateConflict, DatabaseError, InterfaceError) as error:
            if place == 0:
                raise
            logger.error("recovery.failed", thread=work.thread_id, decision=decision, error=described(error))
            disposition = DEFERRED
        if disposition == REPAIRED:
            metrics.repairs.labels(decision).inc()
        reports.append(
            RecoveryReport(submission_id=str(facts.submission_id), decision=decision, disposition=disposition)
        )
    if begun is not None:
        age.check(work.thread_id, begun)
    return reports


def all_wait(submission_ids: Sequence[UUID]) -> Sequence[RecoveryReport]:
    """The reports of a queue in which every submission just waits for its turn."""
    return [
        RecoveryReport(submission_id=str(pk), decision=Decision.APPLY_INPUT, disposition=DEFERRED)
        for pk in submission_ids
    ]


def _carry_out(work: Work, facts: Facts, decision: Decision) -> str:
    match decision:
        case Decision.FINALIZE_FROM_HISTORY:
            return _finalize_from_history(work, facts)
        case Decision.SETTLE_EXHAUSTED:
            return _settle_exhausted(work, facts)
        case Decision.SETTLE_ABORTED:
            return aborts.settle_idle(work, facts)
        case Decision.MARK_UNKNOWN:
            return _review_open_calls(work, facts)
        case Decision.APPLY_UNKNOWN_RESOLUTIONS:
            return unknowns.apply(work, facts)
        case Decision.RESUME_SUSPENDED:
            return suspension.wake(work, facts)
        case _:
            return _LEFT_ALONE.get(decision, DEFERRED)


_LEFT_ALONE = {Decision.NO_ACTION: NONE, Decision.AWAIT_UNKNOWN_RESOLUTION: unknowns.MARKED}


def _review_open_calls(work: Work, facts: Facts) -> str:
    found = unknowns.review(work, facts)
    if found.marked:
        return unknowns.MARKED
    if facts.state is State.INPUT_APPLIED and facts.fruitless >= facts.budget and not found.settled:
        # Every open call may run again, but the attempts are used up: else a tool that kills its worker each time
        # would be permitted for ever.
        return _settle_exhausted(work, facts)
    return REPAIRED


def _finalize_from_history(work: Work, facts: Facts) -> str:
    """The log holds the settlement: the row is made to agree."""
    assert facts.recorded_outcome is not None  # noqa: S101 - the decision rests on it
    failpoints.hit(failpoints.REPAIR_BEFORE, work.thread_id)
    with work.fenced():
        settlement.finalize(
            facts.submission_id,
            facts.recorded_outcome,
            facts.attempts,
            Ending.SETTLED,
            transition="finalize_from_history",
        )
        note = _annotation(work, facts, Decision.FINALIZE_FROM_HISTORY, f"outcome {facts.recorded_outcome}")
        _append(work, Batch(note.record_id, [note]))
        failpoints.hit(failpoints.REPAIR_WRITTEN, work.thread_id)
    failpoints.hit(failpoints.REPAIR_AFTER, work.thread_id)
    return REPAIRED


def _settle_exhausted(work: Work, facts: Facts) -> str:
    """The submission has used up its attempts: it fails, typed and recorded, and the queue goes on."""
    failure = settlement.failed(
        EXHAUSTED_TAG,
        f"attempts exhausted: {facts.fruitless} attempts ended without recorded progress, {facts.budget} are allowed",
    )
    note = _annotation(work, facts, Decision.SETTLE_EXHAUSTED, failure.message)
    failpoints.hit(failpoints.REPAIR_BEFORE, work.thread_id)
    with work.fenced(progress=True):
        settlement.conclude(
            settlement.Conclusion(
                submission_id=facts.submission_id,
                outcome=Outcome.FAILED,
                run=records.run_id(facts.submission_id),
                number=facts.attempts,
                ending=Ending.LOST,
                failure=failure,
                joined=ledger.joined_to(work.thread_id, facts.submission_id),
            ),
            lambda batch: _append(work, batch),
            with_records=(note, *calls.audit(facts.submission_id, LEFT_OPEN)),
        )
        failpoints.hit(failpoints.REPAIR_WRITTEN, work.thread_id)
    failpoints.hit(failpoints.REPAIR_AFTER, work.thread_id)
    return REPAIRED


def _annotation(work: Work, facts: Facts, decision: Decision, detail: str) -> NewRecord:
    payload = RepairAnnotated(submission=str(facts.submission_id), decision=decision, detail=detail)
    return NewRecord(records.repair_id(facts.submission_id, decision, work.epoch), payload)


def _append(work: Work, batch: Batch) -> None:
    log.append_at_tail(work.thread_id, batch, epoch=work.epoch)
