"""A person's answer about an unknown call: written once through the gate, applied by the pass that it wakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from agents import aborts, canonical, failpoints
from agents.canonical import Json, NotJson
from agents.conf import get_settings
from agents.errors import CallNotUnknown, CallRefused, UnknownResolutionConflict, UnknownSubmission
from agents.models import CallStatus, ResolutionKind, Submission, ToolCall, UnknownResolution
from agents.states import State
from maintenance import api as maintenance

NEEDS_RESULT = {ResolutionKind.COMPLETED, ResolutionKind.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a person said of one try of a call. The same answer again gives an equal one."""

    submission_id: UUID
    call: str
    tries: int
    resolution: ResolutionKind
    result: Any
    """The result, or the text of the error; `None` for the other resolutions."""
    author: str
    reason: str
    created_at: datetime
    replayed: bool = field(default=False, compare=False)
    """It had been given before; this call wrote nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """An answer that was checked and encoded, before anything is read or written."""

    submission_id: UUID
    call: str
    turn: int
    tries: int | None
    resolution: ResolutionKind
    result: Json | None
    author: str
    reason: str

    @property
    def text(self) -> str:
        return "" if self.result is None else self.result


class _Answered(Exception):
    """Leaves the gate without a trace: somebody was faster."""

    def __init__(self, row: UnknownResolution) -> None:
        self.row = row


def resolve(  # noqa: PLR0913 - the words of an answer
    submission_id: UUID,
    call: str,
    resolution: ResolutionKind | str,
    *,
    result: Any = None,
    author: str,
    reason: str,
    turn: int = 0,
    tries: int | None = None,
    also: Callable[[ToolCall, datetime], None] | None = None,
) -> Resolution:
    """Stores the answer and wakes the thread; an abort is stored together with the intent that it means.

    `also` is written in the same commit, unless it is a repetition.
    `tries`: the try that the person saw; an answer about an earlier one is refused. Raises, with nothing written:
    `UnknownSubmission`, `CallNotUnknown`, `UnknownResolutionConflict`, `CallRefused` (the answer does not fit).
    """
    given = _checked(submission_id, call, resolution, result, author, reason, turn, tries)
    thread_id = Submission.objects.filter(pk=submission_id).values_list("thread_id", flat=True).first()
    if thread_id is None:
        raise UnknownSubmission(f"there is no submission {submission_id}")
    failpoints.hit(failpoints.RESOLVE_BEFORE, thread_id)
    try:
        # Race closed: two people at once, or a pass that applies what stands. The gate's lock lets the second look
        # after the first has committed; what it then finds takes its bump back.
        with maintenance.mutation(thread_id) as mutation:
            row = _write(given, mutation.now)
            if also is not None:
                also(row.tool_call, mutation.now)
            failpoints.hit(failpoints.RESOLVE_WRITTEN, thread_id)
    except _Answered as answered:
        return _what_stands(given, answered.row)
    failpoints.hit(failpoints.RESOLVE_AFTER, thread_id)
    return _shown(given, row)


def _checked(
    submission_id: UUID,
    call: str,
    resolution: ResolutionKind | str,
    result: Any,
    author: str,
    reason: str,
    turn: int,
    tries: int | None,
) -> _Given:
    if resolution not in ResolutionKind.values:
        raise CallRefused(f"a resolution is one of {', '.join(ResolutionKind.values)}")
    kind = ResolutionKind(resolution)
    if not author.strip() or not reason.strip():
        raise CallRefused("a resolution needs an author and a reason; both are kept")
    if kind not in NEEDS_RESULT and result is not None:
        raise CallRefused(f"{kind.value} takes no result")
    if kind is ResolutionKind.FAILED and (not isinstance(result, str) or not result.strip()):
        raise CallRefused("failed-with-error needs the text of the error as its result")
    return _Given(
        submission_id=submission_id,
        call=call,
        turn=turn,
        tries=tries,
        resolution=kind,
        result=_encoded(result) if kind in NEEDS_RESULT else None,
        author=author[:200],
        reason=reason,
    )


def _encoded(result: Any) -> Json:
    try:
        text = canonical.encode(result)
    except NotJson as error:
        raise CallRefused(f"the result is not JSON: {error}") from None
    size, maximum = canonical.size(text), get_settings().max_step_result_bytes
    if size > maximum:
        raise CallRefused(f"the result has {size} bytes; at most {maximum} are allowed")
    return text


def _write(given: _Given, now: datetime) -> UnknownResolution:
    """Under the gate's lock: stores the answer, or says why there is nothing to answer."""
    row = (
        ToolCall.objects.select_related("submission")
        .filter(submission_id=given.submission_id, turn=given.turn, call=given.call)
        .first()
    )
    if row is None:
        raise CallNotUnknown(f"the submission has made no call {given.call!r}")
    if given.tries not in {None, row.tries}:
        raise CallNotUnknown(f"try {given.tries} of the call is not the present one, which is {row.tries}")
    stored = UnknownResolution.objects.filter(tool_call=row, tries=row.tries).first()
    if stored is not None:
        raise _Answered(stored)
    if row.submission.state == State.SETTLED:
        raise CallNotUnknown(f"the submission is settled: {row.submission.outcome}")
    if row.status != CallStatus.UNKNOWN:
        raise CallNotUnknown(f"the call is {row.status}, not unknown")
    if given.resolution is ResolutionKind.ABORT:
        aborts.intend(row.submission, given.author, given.reason, now)
    return UnknownResolution.objects.create(
        tool_call=row,
        tries=row.tries,
        resolution=given.resolution,
        result=given.text,
        author=given.author,
        reason=given.reason,
        created_at=now,
    )


def _what_stands(given: _Given, row: UnknownResolution) -> Resolution:
    if (row.resolution, row.result) != (given.resolution, given.text):
        raise UnknownResolutionConflict(f"{row.author} has resolved the call: {row.resolution}")
    return _shown(given, row, replayed=True)


def _shown(given: _Given, row: UnknownResolution, *, replayed: bool = False) -> Resolution:
    return Resolution(
        submission_id=given.submission_id,
        call=given.call,
        tries=row.tries,
        resolution=ResolutionKind(row.resolution),
        result=canonical.parse(row.result) if row.result else None,
        author=row.author,
        reason=row.reason,
        created_at=row.created_at,
        replayed=replayed,
    )
