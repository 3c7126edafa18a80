"""The tries of a call: what a run wants to call, what is recorded of it, and the commits around each try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from agents import canonical, failpoints, metrics, records
from agents.attempt import Attempt
from agents.canonical import Json
from agents.errors import CallRefused, NeedsPerson, RetryLater, ToolFailed
from agents.log import Batch
from agents.models import CallStatus, ToolCall
from agents.records import Failure, NewRecord, ToolCallPrepared, ToolCallResolved, ToolCallSettled
from agents.tools import Tool, digest_of, key_of

TURN = 0
"""Handlers have no turns; a call is known by its name within the run."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended, as it is recorded."""

    result: Json
    is_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that a handler wants to make."""

    name: str
    """Unique within the run."""
    tool: Tool
    arguments: Json

    @property
    def digest(self) -> str:
        return digest_of(self.tool.name, self.arguments)

    def value(self, ended: Ended) -> Any:
        """What the handler gets. Raises `ToolFailed`."""
        if not ended.is_failure:
            return canonical.parse(ended.result)
        failure = Failure.model_validate(canonical.parse(ended.result))
        raise ToolFailed(tool=self.tool.name, call=self.name, tag=failure.error_tag, reason=failure.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A call that is prepared: it may run now, and what came of it must be recorded."""

    call: Call
    tries: int
    kind: str
    """As it was recorded: a later release may declare the tool otherwise."""

    def bound(self, attempt: Attempt, context: Any) -> Callable[[], Any]:
        """The tool with all its arguments."""
        key = key_of(attempt.claimed.submission_id, TURN, self.call.name)
        return self.call.tool.bound(self.call.arguments, key, context)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the log says of a call. History decides, not the row."""

    tries: int = 0
    """How often it was prepared."""
    tool: str = ""
    digest: str = ""
    kind: str = ""
    ended: Ended | None = None
    is_open: bool = False

    @classmethod
    def of(cls, attempt: Attempt, name: str) -> Recorded:
        """Reads one try after the other: each but the last has ended without an effect."""
        found = cls()
        while (prepared := _payload(attempt, "tool-prepared", found.tries + 1, name)) is not None:
            tries = found.tries + 1
            settled = _payload(attempt, "tool-settled", tries, name)
            resolved = None if settled else _payload(attempt, "tool-resolved", tries, name)
            found = cls(
                tries=tries,
                tool=prepared["tool"],
                digest=prepared["digest"],
                kind=prepared["kind"],
                ended=Ended(canonical.encode(settled["result"]), settled["is_failure"]) if settled else None,
                is_open=settled is None and resolved is None,
            )
        return found

    def check(self, call: Call) -> None:
        """A result stands for what was asked; another question under the same name has none."""
        if self.tries and (self.tool, self.digest) != (call.tool.name, call.digest):
            raise CallRefused(
                f"call {call.name!r} is recorded as one of tool {self.tool!r} with other arguments or another tool; "
                "a handler must make the same calls each time (take times and random values from ctx.step)"
            )


def _payload(attempt: Attempt, kind: str, tries: int, name: str) -> Any:
    return attempt.journal.payload(records.call_id(kind, attempt.run, TURN, tries, name))


def prepare(attempt: Attempt, made: Try) -> None:
    """Commits that the tool is about to run: from here on it may have had its effect."""
    call, now = made.call, attempt.now()
    payload = ToolCallPrepared(
        run=attempt.run,
        turn=TURN,
        call=call.name,
        tries=made.tries,
        tool=call.tool.name,
        kind=call.tool.kind,
        arguments=call.arguments,
        digest=call.digest,
    )
    failpoints.hit(failpoints.TOOL_BEFORE, attempt.thread_id)
    # Race closed: a takeover since the last commit; what runs must be ours, and open for whoever comes after us.
    with attempt.writing(f"call {call.name!r}", progress=False) as append:
        _append(append, "tool-prepared", attempt, made, payload)
        if made.tries == 1:
            ToolCall.objects.create(
                submission_id=attempt.claimed.submission_id,
                turn=TURN,
                call=call.name,
                tool=call.tool.name,
                kind=call.tool.kind,
                arguments=call.arguments,
                status=CallStatus.PREPARED,
                prepared_at=now,
                updated_at=now,
            )
        else:
            _rows(attempt, made).update(
                status=CallStatus.PREPARED,
                tries=made.tries,
                kind=call.tool.kind,
                unknown_reason="",
                prepared_at=now,
                updated_at=now,
            )
        failpoints.hit(failpoints.TOOL_PREPARING, attempt.thread_id)
    attempt.calls_made += 1
    failpoints.hit(failpoints.TOOL_PREPARED, attempt.thread_id)


def settle(attempt: Attempt, made: Try, ended: Ended) -> None:
    """Commits the result: from here on the tool never runs again for this call."""
    call = made.call
    payload = ToolCallSettled(
        run=attempt.run,
        turn=TURN,
        call=call.name,
        tries=made.tries,
        tool=call.tool.name,
        result=ended.result,
        is_failure=ended.is_failure,
        by="handler",
    )
    # Race closed: a takeover while the tool ran. Whoever took over has shown the call to a person or runs it again;
    # our result comes too late and is refused.
    with attempt.writing(f"call {call.name!r}") as append:
        _append(append, "tool-settled", attempt, made, payload)
        _rows(attempt, made).update(status=CallStatus.SETTLED, updated_at=attempt.now())
        failpoints.hit(failpoints.TOOL_SETTLING, attempt.thread_id)
    metrics.tool_calls.labels("failed" if ended.is_failure else "settled").inc()
    failpoints.hit(failpoints.TOOL_SETTLED, attempt.thread_id)


def permit(attempt: Attempt, made: Try, asked: RetryLater | NeedsPerson) -> None:
    """Commits that this try had no effect: the tool itself says so. The next attempt may try again."""
    payload = ToolCallResolved(
        run=attempt.run,
        turn=TURN,
        call=made.call.name,
        tries=made.tries,
        resolution="never-started",
        author="tool",
        reason=asked.message,
    )
    with attempt.writing(f"call {made.call.name!r}", progress=False) as append:
        _append(append, "tool-resolved", attempt, made, payload)
        _rows(attempt, made).update(status=CallStatus.PERMITTED, updated_at=attempt.now())
        failpoints.hit(failpoints.TOOL_SETTLING, attempt.thread_id)
    metrics.tool_calls.labels("not now").inc()
    failpoints.hit(failpoints.TOOL_SETTLED, attempt.thread_id)


def _append(append: Callable[[Batch], None], kind: str, attempt: Attempt, made: Try, payload: records.Payload) -> None:
    record_id = records.call_id(kind, attempt.run, TURN, made.tries, made.call.name)
    append(Batch(record_id, [NewRecord(record_id, payload)]))


def _rows(attempt: Attempt, made: Try) -> QuerySet[ToolCall]:
    return ToolCall.objects.filter(submission_id=attempt.claimed.submission_id, turn=TURN, call=made.call.name)
