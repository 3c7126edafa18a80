"""What people and other systems may do: asked for permission first, done by the verb, written down with it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from agents import aborts, approvals, events, resolutions
from agents.aborts import Abort
from agents.approvals import Decision
from agents.errors import AgentInputError, UnknownApproval, UnknownThread
from agents.models import Approval, ApprovalDecision, ResolutionKind, Submission, ToolCall
from agents.naming import SubmissionLike, check_thread_id, id_of
from agents.operations import trail
from agents.operations.authorize import Actor, Operation, authorize, reason_given
from agents.resolutions import Resolution
from maintenance import operations as maintenance
from maintenance.models import ThreadMaintenance

DECISIONS = (ApprovalDecision.APPROVED, ApprovalDecision.DENIED)
"""What a person may say; the others are for the clock and for aborts."""


def abort(submission: SubmissionLike, *, actor: Actor = None, reason: str) -> Abort:
    """Asks for a submission's end, wherever it stands. A repetition is answered with the first request.

    Raises `OperationDenied`, `UnknownSubmission`, `AbortRefused`; nothing was written then.
    """
    submission_id = id_of(submission)
    author = authorize(actor, Operation.ABORT, submission_id=submission_id)
    reason = reason_given(Operation.ABORT, reason)

    def note(row: Submission, at: datetime) -> None:
        before: trail.State = {"submission": str(row.pk), "state": row.state, "aborted": False}
        trail.note(
            Operation.ABORT,
            row.thread_id,
            actor=author,
            reason=reason,
            before=before,
            after={**before, "aborted": True},
            at=at,
        )

    return aborts.abort(submission_id, author=author, reason=reason, also=note)


def resolve_approval(
    approval: UUID | str | SubmissionLike,
    decision: ApprovalDecision | str,
    *,
    actor: Actor = None,
    reason: str,
    digest: str | None = None,
    name: str | None = None,
) -> Decision:
    """Approves or denies, and wakes the thread; the same decision again is answered with the first one.

    With `name`, the first argument is the submission that asked under that name. With `digest`, what was shown to
    the person must be what is asked. Raises `OperationDenied`, `UnknownApproval`, `ApprovalConflict` (it is decided
    otherwise or has expired), `AgentInputError`; nothing was written then.
    """
    named = _approval_id(approval) if name is None else id_of(approval)
    author = authorize(
        actor,
        Operation.RESOLVE_APPROVAL,
        approval_id=named if name is None else None,
        submission_id=None if name is None else named,
    )
    reason = reason_given(Operation.RESOLVE_APPROVAL, reason)
    if decision not in DECISIONS:
        raise AgentInputError(f"a decision is one of {', '.join(DECISIONS)}")
    said = ApprovalDecision(decision)

    def note(row: Approval, at: datetime) -> None:
        before: trail.State = {"submission": str(row.submission_id), "approval": str(row.pk), "decision": ""}
        trail.note(
            Operation.RESOLVE_APPROVAL,
            row.submission.thread_id,
            actor=author,
            reason=reason,
            before=before,
            after={**before, "decision": said},
            at=at,
        )

    decided = named if name is None else _approval_named(named, name)
    return approvals.decide(decided, said, author=author, reason=reason, digest=digest, also=note)


def resolve_unknown(
    submission: SubmissionLike,
    call: str,
    resolution: ResolutionKind | str,
    *,
    actor: Actor = None,
    reason: str,
    result: Any = None,
    turn: int = 0,
    tries: int | None = None,
) -> Resolution:
    """A person's answer about an unknown call: what became of it, or that the submission is given up.

    `completed-with-result` takes the `result`, `failed-with-error` the error's text as `result`; `never-started` and
    `safe-retry` let the next attempt run the call again, `abort` ends the submission. Once every unknown call of the
    submission is answered, the run goes on. The same answer again gives the first one. `tries` is the try that the
    person was shown: an answer about an earlier one is refused.

    Raises, with nothing written: `OperationDenied`, `UnknownSubmission`, `CallNotUnknown`,
    `UnknownResolutionConflict`, `CallRefused`.
    """
    submission_id = id_of(submission)
    author = authorize(actor, Operation.RESOLVE_UNKNOWN, submission_id=submission_id)
    reason = reason_given(Operation.RESOLVE_UNKNOWN, reason)

    def note(row: ToolCall, at: datetime) -> None:
        before: trail.State = {
            "submission": str(row.submission_id),
            "call": row.call,
            "turn": row.turn,
            "tries": row.tries,
            "resolution": "",
        }
        trail.note(
            Operation.RESOLVE_UNKNOWN,
            row.submission.thread_id,
            actor=author,
            reason=reason,
            before=before,
            after={**before, "resolution": str(resolution)},
            at=at,
        )

    return resolutions.resolve(
        submission_id,
        call,
        resolution,
        result=result,
        author=author,
        reason=reason,
        turn=turn,
        tries=tries,
        also=note,
    )


def send_event(
    thread_id: str,
    name: str,
    payload: Any = None,
    *,
    key: str | None = None,
    actor: Actor = None,
    reason: str = "",
) -> bool:
    """Tells a thread something and wakes it; `False` if it had been told before under this key.

    Systems send events without a reason; with one (an operator's), it is written down. Raises `OperationDenied`,
    `UnknownThread`, `AgentInputError`, `AdmissionLimitExceeded`, `EventConflict`; nothing was written then.
    """
    author = authorize(actor, Operation.SEND_EVENT, thread_id=thread_id)
    check_thread_id(thread_id)
    said = reason.strip()

    def note(at: datetime) -> None:
        after: trail.State = {"event": name, "key": key}
        trail.note(Operation.SEND_EVENT, thread_id, actor=author, reason=said, before={}, after=after, at=at)

    return events.send(thread_id, name, payload, key=key, also=note if said else None)


def wake(thread_id: str, *, actor: Actor = None, reason: str) -> bool:
    """Makes the thread's next pass due now, without a new generation; `False` while a pass holds it.

    Raises `OperationDenied`, `UnknownThread`; nothing was written then.
    """
    author = authorize(actor, Operation.WAKE, thread_id=thread_id)
    reason = reason_given(Operation.WAKE, reason)
    _check_known(thread_id)
    return maintenance.wake(thread_id, actor=author, reason=reason)


def force_pass(thread_id: str, *, actor: Actor = None, reason: str) -> bool:
    """As `wake`, and one pass runs although the thread is paused or in quarantine, which it stays.

    It never breaks a live lease, and nothing that waits for a moment begins before it.
    """
    author = authorize(actor, Operation.FORCE_PASS, thread_id=thread_id)
    reason = reason_given(Operation.FORCE_PASS, reason)
    _check_known(thread_id)
    return maintenance.force_pass(thread_id, actor=author, reason=reason)


def _approval_id(approval: object) -> UUID:
    try:
        return approval if isinstance(approval, UUID) else UUID(str(approval))
    except ValueError:
        raise UnknownApproval("that is not the id of an approval; with `name`, give the submission that asks") from None


def _approval_named(submission_id: UUID, name: str) -> UUID:
    asked = Approval.objects.filter(submission_id=submission_id)
    found = asked.filter(name=name).values_list("pk", flat=True).first()
    if found is not None:
        return found
    open_names = ", ".join(repr(one) for one in asked.filter(decision="").values_list("name", flat=True))
    raise UnknownApproval(
        f"submission {submission_id} has not asked for approval {name!r}; open are: {open_names or 'none'}"
    )


def _check_known(thread_id: str) -> None:
    check_thread_id(thread_id)
    if not ThreadMaintenance.objects.filter(pk=thread_id).exists():
        raise UnknownThread(f"there is no thread {thread_id!r}")
