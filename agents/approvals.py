"""Approvals: a run asks a person before it does something, and costs nothing until the person has said so.

The question is bound to a digest of what would be done, with which arguments. It is decided once, by one conditional
update that also wakes the thread, or it expires. A decision becomes a record when the run goes on. A policy of the
host project may decide in the person's place, before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from agents import canonical, failpoints, policies, records
from agents.attempt import Attempt
from agents.canonical import Json, NotJson
from agents.conf import get_settings
from agents.errors import ApprovalConflict, StepError, UnknownApproval
from agents.log import Batch
from agents.models import Approval, ApprovalDecision
from agents.moments import moment, parsed
from agents.policies import Approve
from agents.records import ApprovalDecided, ApprovalRequested, NewRecord
from agents.registry import MAX_NAME
from agents.states import Wait
from maintenance import api as maintenance
from maintenance import clock

BY_TIME = "clock"
"""The resolver of an approval that nobody decided in time."""

BY_POLICY = "approval-policy"
"""The resolver of an approval that the host project's policy decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of a question. True if it was approved."""

    decision: ApprovalDecision
    resolver: str
    reason: str

    def __bool__(self) -> bool:
        return self.decision == ApprovalDecision.APPROVED


def ask(attempt: Attempt, name: str, tool: str, arguments: Any, expires_in: timedelta | None = None) -> Decision:
    """The decision about `tool` with `arguments`; suspends the run until there is one.

    The policy is asked once, before the question is written: what waits for a person is the person's.
    Raises `StepError` if the arguments are not JSON or too large, or are not those that were asked about under this
    name.
    """
    text = _encoded(name, tool, arguments)
    asked = attempt.journal.payload(records.of_run("approval-requested", attempt.run, name))
    if asked is not None and asked["digest"] != digest_of(tool, text):
        raise StepError(f"approval {name!r} was asked for something else; what was approved must be what is done")
    decided = attempt.journal.payload(records.of_run("approval-decided", attempt.run, name))
    if decided is not None:
        return _decision(decided["decision"], decided["resolver"], decided["reason"])
    attempt.boundary()
    found = _take_decision(attempt, name)
    if found is None and asked is None:
        found = _by_policy(attempt, name, tool, text)
    if found is None:
        _suspend(attempt, name, tool, text, expires_in, asked)
        # The decision was there when we were about to suspend, or the time was up.
        found = _take_decision(attempt, name)
    if found is None:
        raise StepError(f"approval {name!r} can be neither asked nor answered; run verify on the thread")
    return found


def digest_of(tool: str, arguments: Json) -> str:
    """What a decision is bound to."""
    return canonical.digest(canonical.compose({"arguments": arguments, "tool": tool}))


def decide(
    approval_id: UUID,
    decision: ApprovalDecision,
    *,
    author: str,
    reason: str,
    digest: str | None = None,
    also: Callable[[Approval, datetime], None] | None = None,
) -> Decision:
    """Decides a question and wakes its thread; the same decision again is answered with the first one.

    `also` is written in the same commit, unless it is a repetition.
    `digest`: what the person saw; another one is refused. Raises `UnknownApproval`, `ApprovalConflict` (with the
    decision that stands, or that it expired); then nothing was written.
    """
    row = Approval.objects.select_related("submission").filter(pk=approval_id).first()
    if row is None:
        raise UnknownApproval(f"there is no approval {approval_id}")
    if digest is not None and digest != row.digest:
        raise ApprovalConflict("the approval is about something else than what was shown; look at it again")
    thread_id = row.submission.thread_id
    failpoints.hit(failpoints.DECIDE_BEFORE, thread_id)
    try:
        # Race closed: two people at once, or a person and the expiry. One conditional update wins; who loses takes
        # the bump back and is told what stands.
        with maintenance.mutation(thread_id) as mutation:
            _decide_or_leave(approval_id, decision, author, reason, mutation.now)
            if also is not None:
                also(row, mutation.now)
            failpoints.hit(failpoints.DECIDE_WRITTEN, thread_id)
    except _Stands:
        return _what_stands(approval_id, decision)
    failpoints.hit(failpoints.DECIDE_AFTER, thread_id)
    return _decision(decision, author, reason)


class _Stands(Exception):
    """There is a decision already."""


def _decide_or_leave(approval_id: UUID, decision: str, author: str, reason: str, now: datetime) -> None:
    open_rows = Approval.objects.filter(pk=approval_id, decision="").exclude(expires_at__lte=now)
    if not open_rows.update(decision=decision, decided_by=author[:200], reason=reason, decided_at=now):
        raise _Stands


def _what_stands(approval_id: UUID, wanted: ApprovalDecision) -> Decision:
    row = Approval.objects.get(pk=approval_id)
    if row.decision == wanted:
        return _decision(row.decision, row.decided_by, row.reason)
    if row.decision == "":
        raise ApprovalConflict("the approval has expired; nothing was decided")
    raise ApprovalConflict(f"{row.decided_by} has decided: {row.decision}")


def _take_decision(attempt: Attempt, name: str) -> Decision | None:
    """Turns the row's decision, or its expiry, into a record; `None` while there is neither."""
    row = Approval.objects.filter(submission_id=attempt.claimed.submission_id, name=name).first()
    if row is None or (row.decision == "" and not _has_expired(row)):
        return None
    failpoints.hit(failpoints.ANSWER_BEFORE, attempt.thread_id)
    # Race closed: a decision that commits while the expiry is being recorded; the update under the lock decides.
    with attempt.writing(f"the answer to approval {name!r}") as append:
        _decide_once_by_time(row)
        row.refresh_from_db()
        record = _decided(attempt, row)
        append(Batch(record.record_id, [record]))
        failpoints.hit(failpoints.ANSWER_WRITTEN, attempt.thread_id)
    failpoints.hit(failpoints.ANSWER_AFTER, attempt.thread_id)
    return _decision(row.decision, row.decided_by, row.reason)


def _has_expired(row: Approval) -> bool:
    return row.expires_at is not None and row.expires_at <= clock.now()


def _decide_once_by_time(row: Approval) -> None:
    Approval.objects.filter(pk=row.pk, decision="").update(
        decision=ApprovalDecision.EXPIRED, decided_by=BY_TIME, reason="nobody decided in time", decided_at=clock.now()
    )


def _suspend(attempt: Attempt, name: str, tool: str, text: Json, expires_in: timedelta | None, asked: Any) -> None:
    """Asks (once) and suspends, in one commit: nobody can decide what does not wait, nothing waits unasked."""
    if asked is not None:
        expires = asked.get("expires_at")
        attempt.suspend(Wait.APPROVAL, name, wake_at=parsed(expires) if expires else None)
        return
    row = _question(attempt, name, tool, text, expires_in)
    record = _requested(attempt, row)
    attempt.suspend(
        Wait.APPROVAL,
        name,
        wake_at=row.expires_at,
        batch=Batch(record.record_id, [record]),
        also=lambda: row.save(force_insert=True),
    )


def _by_policy(attempt: Attempt, name: str, tool: str, text: Json) -> Decision | None:
    """Question and answer in one batch, if the host's policy answers; `None` leaves it to a person."""
    answer = policies.decision(attempt, name, tool, text)
    if answer is None:
        return None
    row = _question(attempt, name, tool, text)
    row.decision = ApprovalDecision.APPROVED if isinstance(answer, Approve) else ApprovalDecision.DENIED
    row.decided_by, row.reason, row.decided_at = BY_POLICY, answer.reason, row.requested_at
    record = _requested(attempt, row)
    failpoints.hit(failpoints.ANSWER_BEFORE, attempt.thread_id)
    # Race closed: a takeover while the policy was asked; whoever has the thread now has its own answer.
    with attempt.writing(f"the answer to approval {name!r}") as append:
        append(Batch(record.record_id, [record, _decided(attempt, row)]))
        row.save(force_insert=True)
        failpoints.hit(failpoints.ANSWER_WRITTEN, attempt.thread_id)
    failpoints.hit(failpoints.ANSWER_AFTER, attempt.thread_id)
    return _decision(row.decision, row.decided_by, row.reason)


def _question(attempt: Attempt, name: str, tool: str, text: Json, expires_in: timedelta | None = None) -> Approval:
    now = clock.now()
    return Approval(
        id=uuid7(),
        submission_id=attempt.claimed.submission_id,
        name=name,
        tool=tool,
        arguments=text,
        digest=digest_of(tool, text),
        requested_at=now,
        expires_at=None if expires_in is None else now + expires_in,
    )


def _requested(attempt: Attempt, row: Approval) -> NewRecord:
    payload = ApprovalRequested(
        run=attempt.run,
        name=row.name,
        tool=row.tool,
        arguments=Json(row.arguments),
        digest=row.digest,
        expires_at=None if row.expires_at is None else moment(row.expires_at),
    )
    return NewRecord(records.of_run("approval-requested", attempt.run, row.name), payload)


def _decided(attempt: Attempt, row: Approval) -> NewRecord:
    payload = ApprovalDecided(
        run=attempt.run,
        name=row.name,
        decision=ApprovalDecision(row.decision).value,  # type: ignore[arg-type]
        resolver=row.decided_by,
        reason=row.reason,
    )
    return NewRecord(records.of_run("approval-decided", attempt.run, row.name), payload)


def _decision(decision: str, resolver: str, reason: str) -> Decision:
    return Decision(decision=ApprovalDecision(decision), resolver=resolver, reason=reason)


def _encoded(name: str, tool: str, arguments: Any) -> Json:
    if not 0 < len(tool) <= MAX_NAME or not tool.isprintable():
        raise StepError(f"approval {name!r} needs a tool of 1 to {MAX_NAME} printable characters")
    try:
        text = canonical.encode(arguments)
    except NotJson as error:
        raise StepError(f"the arguments of approval {name!r} are not JSON: {error}") from None
    size, maximum = canonical.size(text), get_settings().max_input_bytes
    if size > maximum:
        raise StepError(f"the arguments of approval {name!r} have {size} bytes; at most {maximum} are allowed")
    return text
