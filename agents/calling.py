"""One tool call of a run: recorded before the tool runs, recorded after it, and not run twice unless that is safe.

Between the two records the call is *open*: it may have had its effect. What ends it:

- The tool returns, or raises `ToolFailure`: that is its result.
- It raises any other exception: the call has ended and it failed, so that is its result too (its kind only; the
  text of a foreign exception may hold secrets). An exception that proves nothing, such as a time-out after the
  request was sent, is for the tool to recognise: it raises `OutcomeUnknown`.
- It raises `RetryLater`: it had no effect. The run waits, and the next attempt runs it as a new try.
- It raises `OutcomeUnknown`: an ordinary call is shown to a person at once; a reconciled one is looked up and the
  others are run again by the next attempt, after the failure backoff.
- It is cut off (deadline, lost lease, a dying process): it stays open, and recovery decides by its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from inspect import isawaitable
from typing import Any

from agents import canonical, failpoints, metrics, records, settlement, unknowns
from agents.attempt import Aborted, Attempt, Halted, Suspended, Yielded, logger
from agents.canonical import Json, NotJson
from agents.conf import get_settings
from agents.errors import BudgetExhausted, CallRefused, OutcomeUnknown, RetryLater, ToolFailed, ToolFailure
from agents.log import Batch
from agents.models import CallStatus, ToolCall
from agents.records import Failure, NewRecord, ToolCallPrepared, ToolCallResolved, ToolCallSettled
from agents.tools import RERUNNABLE, Tool, digest_of, key_of
from maintenance.errors import INTERRUPTIONS, RuntimeFailed, described, kind_of

RESULT_TAG = "ToolResultError"
"""Tag of a call whose tool ran and gave what cannot be recorded."""

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


Outcome = Ended | RetryLater | OutcomeUnknown
"""What the tool's code came to."""


def begin(attempt: Attempt, call: Call) -> Ended | Try:
    """The recorded result of the call, or one more try of it, prepared.

    Raises `CallRefused` if something else is recorded under the name, `BudgetExhausted`; nothing was written then.
    Leaves by `Suspended` if the call is open and may not be run again.
    """
    with attempt.stopping():
        recorded = _Recorded.of(attempt, call.name)
    recorded.check(call)
    if recorded.ended is not None:
        metrics.tool_calls.labels("replayed").inc()
        return recorded.ended
    if recorded.is_open:
        made = Try(call=call, tries=recorded.tries, kind=recorded.kind)
        if made.kind not in RERUNNABLE:
            # Recovery has marked it before any attempt; whoever took its place finds it here. Never run it.
            unknowns.give_up(attempt, call.name, "an earlier attempt ended without a recorded result of the call")
        attempt.boundary()
        return made
    attempt.boundary()
    _check_budget(attempt)
    made = Try(call=call, tries=recorded.tries + 1, kind=call.tool.kind)
    _prepare(attempt, made)
    return made


def perform(attempt: Attempt, made: Try, context: Any) -> Ended:
    """Runs a plain tool and records what came of it."""
    with exposed(attempt):
        outcome = outcome_of(made, made.bound(attempt, context))
    return finish(attempt, made, outcome)


def outcome_of(made: Try, run: Callable[[], Any]) -> Outcome:
    """Runs the tool. Interruptions, and whatever else is no ordinary exception, leave the call open."""
    try:
        output = run()
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - what a tool raises is an outcome of its call
        return raised(made, error)
    return returned(made, output)


def returned(made: Try, output: Any) -> Ended:
    """The outcome of a tool that returned. What cannot be recorded is a failure of the call: its effect happened."""
    tool = made.call.tool
    if isawaitable(output):
        if hasattr(output, "close"):
            output.close()
        return _failed(RESULT_TAG, "the tool gave a coroutine; only an `async def` handler can await it")
    try:
        text = canonical.encode(output)
    except NotJson as error:
        return _failed(RESULT_TAG, f"the tool ran, but its result is not JSON: {error}")
    size, maximum = canonical.size(text), tool.result_limit
    if size > maximum:
        return _failed(RESULT_TAG, f"the tool ran, but its result has {size} bytes; at most {maximum} are allowed")
    return Ended(text)


def raised(made: Try, error: Exception) -> Outcome:
    """The outcome of a tool that raised."""
    if isinstance(error, RetryLater | OutcomeUnknown):
        return error
    if isinstance(error, ToolFailure):
        return _failed(error.tag, error.message)
    logger.warning("tool.raised", tool=made.call.tool.name, call=made.call.name, kind=kind_of(error), exc_info=error)
    return _failed(kind_of(error), described(error))


def finish(attempt: Attempt, made: Try, outcome: Outcome) -> Ended:
    """Records what came of a try. Raises `RetryLater` to the handler; leaves by `Suspended` or `Halted` if the
    outcome is unknown."""
    failpoints.hit(failpoints.TOOL_RAN, attempt.thread_id)
    match outcome:
        case Ended():
            _settle(attempt, made, outcome)
            return outcome
        case RetryLater():
            _permit(attempt, made, outcome)
            raise outcome
        case OutcomeUnknown():
            if made.kind == "ordinary":
                unknowns.give_up(attempt, made.call.name, outcome.message or "the tool cannot tell")
            with attempt.stopping():
                raise Halted(outcome)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What the log says of a call. History decides, not the row."""

    tries: int = 0
    """How often it was prepared."""
    tool: str = ""
    digest: str = ""
    kind: str = ""
    ended: Ended | None = None
    is_open: bool = False

    @classmethod
    def of(cls, attempt: Attempt, name: str) -> _Recorded:
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


def _check_budget(attempt: Attempt) -> None:
    """Counted from the log and what this attempt added, so that no restart refills it."""
    made = attempt.journal.count("tool-prepared") + attempt.prepared
    maximum = get_settings().max_tool_calls
    if made >= maximum:
        raise BudgetExhausted(f"the run has made {made} tool calls; at most {maximum} are allowed")


def _prepare(attempt: Attempt, made: Try) -> None:
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
    attempt.prepared += 1
    failpoints.hit(failpoints.TOOL_PREPARED, attempt.thread_id)


def _settle(attempt: Attempt, made: Try, ended: Ended) -> None:
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
        _move(attempt, made, CallStatus.SETTLED, attempt.now())
        failpoints.hit(failpoints.TOOL_SETTLING, attempt.thread_id)
    metrics.tool_calls.labels("failed" if ended.is_failure else "settled").inc()
    failpoints.hit(failpoints.TOOL_SETTLED, attempt.thread_id)


def _permit(attempt: Attempt, made: Try, asked: RetryLater) -> None:
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
        _move(attempt, made, CallStatus.PERMITTED, attempt.now())
        failpoints.hit(failpoints.TOOL_SETTLING, attempt.thread_id)
    metrics.tool_calls.labels("not now").inc()
    failpoints.hit(failpoints.TOOL_SETTLED, attempt.thread_id)


def _append(append: Callable[[Batch], None], kind: str, attempt: Attempt, made: Try, payload: records.Payload) -> None:
    record_id = records.call_id(kind, attempt.run, TURN, made.tries, made.call.name)
    append(Batch(record_id, [NewRecord(record_id, payload)]))


def _rows(attempt: Attempt, made: Try) -> Any:
    return ToolCall.objects.filter(submission_id=attempt.claimed.submission_id, turn=TURN, call=made.call.name)


def _move(attempt: Attempt, made: Try, status: CallStatus, now: datetime) -> None:
    _rows(attempt, made).update(status=status, updated_at=now)


def _failed(tag: str, message: str) -> Ended:
    return Ended(canonical.encode(settlement.failed(tag, message).model_dump()), is_failure=True)


@contextmanager
def exposed(attempt: Attempt) -> Iterator[None]:
    """Around a tool. What leaves it and is no outcome stops the attempt, also if the handler swallows it: nothing may
    be settled over an effect of which nobody knows."""
    try:
        yield
    except (Yielded, Suspended, Aborted, Halted, *INTERRUPTIONS) as stopped:
        attempt.stop(stopped)
        raise
    except Exception:
        raise
    except BaseException as error:
        attempt.stop(_cut_off(error))
        raise


def _cut_off(error: BaseException) -> Halted:
    return Halted(RuntimeFailed(f"a tool was cut off ({kind_of(error)}); whether it had its effect is not known"))
