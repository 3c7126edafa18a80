"""Why a submission stands where it stands, from the classifier that recovery itself uses. Writes nothing.

What it tells is for operators, who may see less than the log holds: no input, output, argument or payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from agents.errors import UnknownSubmission, UnknownThread
from agents.models import Submission, Thread
from agents.naming import SubmissionLike, check_thread_id, id_of
from agents.operations import findings, phrases
from agents.operations.authorize import Actor, Operation, authorize
from agents.operations.findings import Abort, Around, Found, OpenApproval, OpenCall, Tries
from agents.recovery.classify import Decision
from agents.recovery.evidence import gather
from agents.states import Outcome, State, Wait
from maintenance import clock, status

DEFERRED, NONE, REPAIRED, UNKNOWN = "deferred", "none", "repaired", "unknown"

PREDICTIONS: dict[Decision, tuple[str, str]] = {
    Decision.NO_ACTION: (NONE, "it is settled"),
    Decision.FINALIZE_FROM_HISTORY: (REPAIRED, "its row is made to agree with the settlement in the log"),
    Decision.SETTLE_JOINED_WITH_HOST: (DEFERRED, "it settles with the run that it joined"),
    Decision.AWAIT_HOST: (DEFERRED, "it settles when the run that it joined does"),
    Decision.SETTLE_ABORTED: (REPAIRED, "it is settled as aborted"),
    Decision.MARK_UNKNOWN: (UNKNOWN, "its open calls are looked up, or shown to a person"),
    Decision.APPLY_UNKNOWN_RESOLUTIONS: (REPAIRED, "the answers about its calls become records"),
    Decision.AWAIT_UNKNOWN_RESOLUTION: (UNKNOWN, "a person has to say what became of a call"),
    Decision.RESUME_SUSPENDED: (REPAIRED, "what it waited for is there: it goes on"),
    Decision.AWAIT_ANSWER: (DEFERRED, "it waits for a person, an event or a moment"),
    Decision.AWAIT_CHILD: (DEFERRED, "it waits for what it delegated"),
    Decision.RESUME_WAITING_PARENT: (DEFERRED, "what it delegated is done: it goes on"),
    Decision.AWAIT_PARENT_ESTABLISHMENT: (DEFERRED, "its parent has to record it first"),
    Decision.SETTLE_EXHAUSTED: (REPAIRED, "its attempts are used up: it is settled as failed"),
    Decision.APPLY_INPUT: (DEFERRED, "an attempt begins it when its turn comes"),
    Decision.RESUME_FROM_LAST_STEP: (DEFERRED, "the next attempt goes on after its last record"),
    Decision.CLOSE_CHILDREN: (DEFERRED, "what it delegated is still being closed"),
}
"""What the next pass's recovery reports for each decision, and what that means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the decision rests on."""

    first_sequence: int | None = None
    last_progress: int = 0
    """Sequence of the last record of real progress."""
    recorded_outcome: Outcome | None = None
    host_outcome: Outcome | None = None
    joined: int = 0
    answered: bool = False
    """What a suspended submission waits for is there."""
    attempts: Tries | None = None
    approvals: tuple[OpenApproval, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    abort: Abort | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One submission: where it stands, what will be made of it, and why, in one sentence."""

    submission_id: UUID
    thread_id: str
    agent: str
    queue_sequence: int
    state: State
    outcome: str
    waits_for: Wait | None
    waits_on: str
    wake_at: datetime | None
    created_at: datetime
    since: datetime
    """Since when it stands as it does."""
    age_seconds: int
    """Whole seconds since it was accepted."""
    waiting_seconds: int
    """Whole seconds since `since`."""
    decision: Decision
    meaning: str
    disposition: str
    """What recovery will report: `repaired`, `deferred`, `unknown` or `none`."""
    sentence: str
    thread_state: str
    """What maintenance says of the thread: quiet, waiting, due, running, paused, quarantined."""
    evidence: Evidence


def explain(submission: SubmissionLike, *, actor: Actor = None) -> Explanation:
    """Why this submission stands where it stands. Raises `OperationDenied`, `UnknownSubmission`."""
    submission_id = id_of(submission)
    authorize(actor, Operation.EXPLAIN, submission_id=submission_id)
    return look_at(submission_id)


def explain_thread(thread_id: str, *, actor: Actor = None) -> list[Explanation]:
    """Every unsettled submission of a thread, in queue order; nothing if it owes nothing.

    Raises `OperationDenied`, `UnknownThread`.
    """
    authorize(actor, Operation.EXPLAIN, thread_id=thread_id)
    check_thread_id(thread_id)
    found = _unsettled(thread_id)
    if not found and not Thread.objects.filter(pk=thread_id).exists():
        raise UnknownThread(f"there is no thread {thread_id!r}")
    return found


def look_at(submission_id: UUID) -> Explanation:
    """As `explain`, for an operation that has asked for itself."""
    row = _row(submission_id)
    if row.state != State.SETTLED:
        for found in _unsettled(row.thread_id):
            if found.submission_id == submission_id:
                return found
        # It settled between the two looks.
        row = _row(submission_id)
    return _settled(row)


def _row(submission_id: UUID) -> Submission:
    row = Submission.objects.filter(pk=submission_id).defer("input").first()
    if row is None:
        raise UnknownSubmission(f"there is no submission {submission_id}")
    return row


def _unsettled(thread_id: str) -> list[Explanation]:
    facts = gather(thread_id)
    if not facts:
        return []
    where = findings.around(thread_id)
    found = findings.find_out(facts, where)
    return [_explained(each, found[0], where) for each in found]


def _explained(found: Found, head: Found, where: Around) -> Explanation:
    facts, now = found.facts, where.now
    disposition, meaning = PREDICTIONS[found.decision]
    return Explanation(
        submission_id=facts.submission_id,
        thread_id=where.thread_id,
        agent=found.agent,
        queue_sequence=facts.queue_sequence,
        state=facts.state,
        outcome="",
        waits_for=facts.waits_for,
        waits_on=facts.waits_on,
        wake_at=facts.wake_at,
        created_at=found.created_at,
        since=found.since,
        age_seconds=_whole_seconds(now, found.created_at),
        waiting_seconds=_whole_seconds(now, found.since),
        decision=found.decision,
        meaning=meaning,
        disposition=disposition,
        sentence=phrases.sentence(found, head, where),
        thread_state="" if where.row is None else status.state_of(where.row, now),
        evidence=Evidence(
            first_sequence=facts.first_sequence,
            last_progress=facts.last_progress,
            recorded_outcome=facts.recorded_outcome,
            host_outcome=facts.host_outcome,
            joined=found.joined,
            answered=facts.answered,
            attempts=found.tries,
            approvals=found.approvals,
            calls=found.calls,
            abort=found.abort,
        ),
    )


def _settled(row: Submission) -> Explanation:
    """What is over is explained by its row alone."""
    now = clock.now()
    ended = row.settled_at or row.created_at
    disposition, meaning = PREDICTIONS[Decision.NO_ACTION]
    return Explanation(
        submission_id=row.pk,
        thread_id=row.thread_id,
        agent=row.agent,
        queue_sequence=row.queue_sequence,
        state=State(row.state),
        outcome=row.outcome,
        waits_for=None,
        waits_on="",
        wake_at=None,
        created_at=row.created_at,
        since=ended,
        age_seconds=_whole_seconds(now, row.created_at),
        waiting_seconds=_whole_seconds(now, ended),
        decision=Decision.NO_ACTION,
        meaning=meaning,
        disposition=disposition,
        sentence=phrases.settled(row.outcome, row.settled_at, row.attempts, now),
        thread_state="",
        evidence=Evidence(first_sequence=row.first_sequence),
    )


def _whole_seconds(now: datetime, since: datetime) -> int:
    return max(0, int((now - since).total_seconds()))
