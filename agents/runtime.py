"""The canonical work of a pass: recovery of what was left, then one attempt at the head of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from agents import aborts, authorizing, failpoints, hotpath, ledger, log, records, registry, succession
from agents.attempt import Aborted, Attempt, Halted, Suspended, Yielded, logger
from agents.authorizing import Denied
from agents.canonical import Json
from agents.errors import BindingMissing, NeedsPerson, UnknownAgent
from agents.hotpath import Claimed
from agents.ledger import ThreadLedger
from agents.log import Batch, Tail
from agents.records import NewRecord, UserInput
from agents.recovery import execute
from agents.registry import Driver
from agents.states import Ending
from agents.succession import Queue
from maintenance import drain, spans
from maintenance.errors import INTERRUPTIONS, RuntimeFailed
from maintenance.ports import BeginHead, BegunHead, RecoveryReport, Work

__all__ = ["ThreadLedger", "ThreadRuntime"]


class ThreadRuntime:
    """The port through which a pass does the work of its thread."""

    inert = False
    commits_before_user_code = True
    """The claim commits synchronously before a handler runs, so the pass may begin with a relaxed commit."""

    @property
    def begin_head(self) -> BeginHead | None:
        """The claim in the transaction that begins the pass, where the database has the statements for it."""
        return _begin_first if hotpath.serves() else None

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        """Looks at every unsettled submission; repairs what the log says is done and what tried too often."""
        return execute.recover(work)

    def process_head(self, work: Work) -> int:
        """One attempt at the head; 1 if it settled its submission. Raises if its agent is not known here."""
        if work.should_yield():
            # A worker that drains begins nothing; the slot brings another one at once.
            return 0
        failpoints.hit(failpoints.CLAIM_BEFORE, work.thread_id)
        begun = _begin(work)
        if begun is None:
            return 0
        failpoints.hit(failpoints.CLAIM_AFTER, work.thread_id)
        return _run(*begun)


def _begin(work: Work) -> tuple[Attempt, Driver] | None:
    """Claims the head, begins an attempt and puts the input into the log: all of it in one commit."""
    # Race closed: a takeover between claim and input would leave a claim whose input nobody owes.
    with work.fenced():
        claimed = ledger.claim_head(work.thread_id, work.epoch)
        if claimed is None:
            return None
        driver = _driver_of(claimed)
        failpoints.hit(failpoints.CLAIM_CLAIMED, work.thread_id)
        tail = Tail(claimed.tail_sequence, claimed.tail_digest)
        if claimed.input_applied:
            ledger.note_lost_attempts(claimed.submission_id, before=claimed.number)
        else:
            tail = _apply_input(work, claimed, tail)
    return Attempt(work, claimed, tail), driver


def _driver_of(claimed: Claimed) -> Driver:
    """Whoever runs this agent here. Without one the claim is rolled back and the pass fails: the work stays."""
    try:
        return registry.get(claimed.agent)
    except UnknownAgent as unknown:
        raise BindingMissing(f"binding missing in this worker: {unknown.message}") from unknown


def _apply_input(work: Work, claimed: Claimed, tail: Tail) -> Tail:
    batch = _input_batch(claimed.submission_id, claimed.agent, claimed.input)
    producer = log.this_process(work.epoch)
    return log.append(work.thread_id, batch, tail=tail, producer=producer, at=claimed.started_at).tail


def _input_batch(submission_id: UUID, agent: str, text: str) -> Batch:
    submission = str(submission_id)
    payload = UserInput(
        submission=submission, kind="user", run=records.run_id(submission), agent=agent, input=Json(text)
    )
    record = NewRecord(records.input_id(submission), payload)
    return Batch(f"submission-{record.record_id}", [record])


def _begin_first(thread_id: str, epoch: int) -> BegunHead | None:
    """The head of a queue that a delivery finds, begun with its pass (`BeginHead`)."""
    found = succession.look(thread_id)
    if found is None:
        return None
    sequence, digest, at, queue = found
    return _begin_head(queue, Tail(sequence, digest), at, thread_id, epoch) if queue.plain else None


def _begin_head(queue: Queue, tail: Tail, at: datetime, thread_id: str, epoch: int) -> BegunHead | None:
    """As recovery and `_begin`, for a queue in which every submission just waits for its turn: that leaves recovery
    nothing to decide. The queue was read under the row lock that this transaction holds.
    """
    if not queue.waiting or queue.agent is None or queue.input is None or queue.principal is None:
        return None
    try:
        driver = registry.get(queue.agent)
    except UnknownAgent:
        # The pass, begun without its head, fails with that; a settlement in this transaction is not to blame.
        return None
    head = queue.waiting[0]
    failpoints.hit(failpoints.CLAIM_BEFORE, thread_id)
    sealed = log.seal(_input_batch(head, queue.agent, queue.input), tail, log.this_process(epoch), at)
    begun = succession.begin(thread_id, head, sealed)
    if begun is None:
        return None
    failpoints.hit(failpoints.CLAIM_CLAIMED, thread_id)
    place, number, started_at = begun
    claimed = Claimed(
        submission_id=head,
        queue_sequence=place,
        principal=queue.principal,
        agent=queue.agent,
        input=queue.input,
        number=number,
        first_sequence=sealed.after.sequence,
        input_applied=False,
        tail_sequence=tail.sequence,
        tail_digest=tail.digest,
        started_at=started_at,
    )

    def run(work: Work) -> int:
        failpoints.hit(failpoints.CLAIM_AFTER, thread_id)
        attempt = Attempt(work, claimed, sealed.after)
        if work.should_yield():
            # As in `process_head`; the worker was told to stop after the commit that claimed this head.
            attempt.end(Ending.YIELDED)
            return 0
        return _run(attempt, driver)

    return BegunHead(reports=execute.all_wait(queue.waiting), run=run)


def _run(attempt: Attempt, driver: Driver) -> int:
    """Runs the driver outside any transaction, then commits what came of it."""
    claimed = attempt.claimed
    try:
        with spans.span(
            "agents.run", thread=attempt.thread_id, agent=claimed.agent, run=attempt.run, attempt=claimed.number
        ) as span:
            result = driver.run(attempt)
            span.note(outcome=result.outcome)
        attempt.settle(result, _begin_head)
    except Suspended:
        return 0
    except Aborted:
        aborts.settle_running(attempt)
        return 1
    except Denied as denied:
        authorizing.settle_denied(attempt, denied)
        return 1
    except Yielded:
        attempt.end(Ending.YIELDED)
        return 0
    except INTERRUPTIONS:
        attempt.end(Ending.YIELDED if drain.requested() else Ending.INTERRUPTED)
        raise
    except NeedsPerson:
        attempt.end(Ending.SUSPENDED)
        raise
    except Halted as halted:
        attempt.end(Ending.FAILED)
        raise halted.cause from None
    except (RuntimeFailed, DatabaseError, InterfaceError):
        attempt.end(Ending.FAILED)
        raise
    logger.info(
        "submission.settled",
        thread=attempt.thread_id,
        submission=str(claimed.submission_id),
        outcome=result.outcome,
        attempt=claimed.number,
    )
    return 1
