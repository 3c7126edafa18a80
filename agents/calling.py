"""One tool call of a run: recorded before the tool runs, recorded after it, and not run twice unless that is safe.

Between the two records the call is *open*: it may have had its effect. What ends it:

- The tool returns, or raises `ToolFailure`: that is its result.
- It raises any other exception: the call has ended and it failed, so that is its result too (its kind only; the
  text of a foreign exception may hold secrets). An exception that proves nothing, such as a time-out after the
  request was sent, is for the tool to recognise: it raises `OutcomeUnknown`.
- It raises `RetryLater`: it had no effect. The run waits, and the next attempt runs it as a new try.
- It raises `NeedsPerson`: it had no effect. The thread is parked, and what runs after its resume is a new try.
- It raises `OutcomeUnknown`: an ordinary call is shown to a person at once; a reconciled one is looked up and the
  others are run again by the next attempt, after the failure backoff.
- It is cut off (deadline, lost lease, a dying process): it stays open, and recovery decides by its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any

from agents import authorizing, canonical, failpoints, metrics, settlement, tries, unknowns
from agents.attempt import Aborted, Attempt, Halted, Suspended, Yielded, logger
from agents.canonical import NotJson
from agents.conf import get_settings
from agents.errors import BudgetExhausted, NeedsPerson, OutcomeUnknown, RetryLater, ToolFailure
from agents.tools import RERUNNABLE
from agents.tries import Call, Ended, Recorded, Try
from maintenance import spans
from maintenance.errors import INTERRUPTIONS, RuntimeFailed, described, kind_of
from maintenance.spans import Span

RESULT_TAG = "ToolResultError"
"""Tag of a call whose tool ran and gave what cannot be recorded."""

Outcome = Ended | RetryLater | NeedsPerson | OutcomeUnknown
"""What the tool's code came to."""


def begin(attempt: Attempt, call: Call) -> Ended | Try:
    """The recorded result of the call, or one more try of it, prepared.

    Raises `CallRefused` if something else is recorded under the name, `BudgetExhausted`; nothing was written then.
    Leaves by `Suspended` if the call is open and may not be run again, by `Denied` if the host does not allow it.
    """
    with attempt.stopping():
        recorded = Recorded.of(attempt, call.name)
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
        authorizing.require(attempt, made)
        return made
    attempt.boundary()
    _check_budget(attempt)
    made = Try(call=call, tries=recorded.tries + 1, kind=call.tool.kind)
    authorizing.require(attempt, made)
    tries.prepare(attempt, made)
    return made


def perform(attempt: Attempt, made: Try, context: Any) -> Ended:
    """Runs a plain tool and records what came of it."""
    with exposed(attempt, made) as span:
        outcome = outcome_of(made, made.bound(attempt, context))
        span.note(outcome=outcome_name(outcome))
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
    if isinstance(error, RetryLater | NeedsPerson | OutcomeUnknown):
        return error
    if isinstance(error, ToolFailure):
        return _failed(error.tag, error.message)
    logger.warning("tool.raised", tool=made.call.tool.name, call=made.call.name, kind=kind_of(error), exc_info=error)
    return _failed(kind_of(error), described(error))


def finish(attempt: Attempt, made: Try, outcome: Outcome) -> Ended:
    """Records what came of a try. Raises `RetryLater` or `NeedsPerson` to the handler; leaves by `Suspended` or
    `Halted` if the outcome is unknown."""
    failpoints.hit(failpoints.TOOL_RAN, attempt.thread_id)
    match outcome:
        case Ended():
            if made.kind == "stepped":
                # It may have swallowed the stop of one of its steps, and then knows nothing.
                attempt.raise_if_stopped()
            tries.settle(attempt, made, outcome)
            return outcome
        case RetryLater() | NeedsPerson():
            tries.permit(attempt, made, outcome)
            raise outcome
        case OutcomeUnknown():
            if made.kind == "ordinary":
                unknowns.give_up(attempt, made.call.name, outcome.message or "the tool cannot tell")
            with attempt.stopping():
                raise Halted(outcome)


def _check_budget(attempt: Attempt) -> None:
    """Counted from the log and what this attempt added, so that no restart refills it."""
    maximum = get_settings().max_tool_calls
    if attempt.calls_made >= maximum:
        raise BudgetExhausted(f"the run has made {attempt.calls_made} tool calls; at most {maximum} are allowed")


def _failed(tag: str, message: str) -> Ended:
    return Ended(canonical.encode(settlement.failed(tag, message).model_dump()), is_failure=True)


def outcome_name(outcome: Outcome) -> str:
    """The outcome in a word, for spans."""
    match outcome:
        case Ended():
            return "failed" if outcome.is_failure else "completed"
        case RetryLater():
            return "retry-later"
        case NeedsPerson():
            return "needs-person"
    return "unknown"


@contextmanager
def exposed(attempt: Attempt, made: Try) -> Iterator[Span]:
    """Around a tool, with its span. What leaves it and is no outcome stops the attempt, also if the handler swallows
    it: nothing may be settled over an effect of which nobody knows."""
    name = f"execute_tool {made.call.tool.name}"
    try:
        with spans.span(name, thread=attempt.thread_id, kind=made.kind, tries=made.tries) as span:
            yield span
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
