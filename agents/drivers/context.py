"""What a handler gets as `ctx`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any, ClassVar, Self
from uuid import UUID

import structlog

from agents import approvals, calling, canonical, events, joining, timers, tools
from agents.approvals import Decision
from agents.attempt import Attempt
from agents.canonical import Json, NotJson
from agents.conf import get_settings
from agents.errors import ApprovalDenied, CallRefused, StepError
from agents.tries import Call, Try

MAX_STEP_NAME = 200


class BaseContext:
    """Who and where the handler is, and whether it should stop soon."""

    _can_await: ClassVar[bool] = False

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._prefix = ""
        self._used: set[tuple[str, str]] = set()
        self._turns: dict[str, int] = {}
        self.log = structlog.get_logger("wakeful.handler").bind(
            thread=self.thread_id, submission=str(self.submission_id), attempt=self.attempt
        )

    @property
    def thread_id(self) -> str:
        return self._attempt.thread_id

    @property
    def submission_id(self) -> UUID:
        return self._attempt.claimed.submission_id

    @property
    def agent(self) -> str:
        return self._attempt.claimed.agent

    @property
    def principal(self) -> str:
        """Who submitted this."""
        return self._attempt.claimed.principal

    @property
    def attempt(self) -> int:
        """Which attempt of this submission runs, from 1."""
        return self._attempt.claimed.number

    def should_yield(self) -> bool:
        """Whether this attempt was asked to stop: the next step does so by itself, a long loop may ask."""
        return self._attempt.work.should_yield()

    def _take_name(self, name: str, kind: str = "step") -> str:
        """What a run records is known by kind and name, so a run may use each name once."""
        if not name or len(self._prefix + name) > MAX_STEP_NAME or not name.isprintable():
            raise StepError(f"a {kind}'s name is 1 to {MAX_STEP_NAME} printable characters")
        name = self._prefix + name
        if (kind, name) in self._used:
            raise StepError(f"{kind} {name!r} was used twice in one run; each needs a name of its own")
        self._used.add((kind, name))
        return name

    def _name_or_turn(self, name: str | None, kind: str) -> str:
        """The given name, or which use of this kind it is: a replay comes by in the same order."""
        self._turns[kind] = self._turns.get(kind, 0) + 1
        return self._take_name(name or str(self._turns[kind]), kind)

    def _call(
        self,
        what: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None,
        name: str | None,
        more: Mapping[str, Any],
    ) -> Call:
        """The call that the handler wants, checked and encoded while nothing is written."""
        tool = tools.get(what, name)
        if tool.is_async and not self._can_await:
            raise CallRefused(f"tool {tool.name!r} is a coroutine function; only an `async def` handler can call it")
        text = tool.encode({**(arguments or {}), **more})
        if name is None:
            turn = self._turns[f"call {tool.name}"] = self._turns.get(f"call {tool.name}", 0) + 1
            name = tool.name if turn == 1 else f"{tool.name} {turn}"
        return Call(name=self._take_name(name, "call"), tool=tool, arguments=text)

    def _approved(self, call: Call, expires_in: float | timedelta | None) -> None:
        """Asks a person before the call is made; suspends until there is a decision. Raises `ApprovalDenied`."""
        duration = optional_duration(expires_in)
        decision = approvals.ask(self._attempt, call.name, call.tool.name, call.arguments, duration)
        if not decision:
            raise ApprovalDenied(
                f"call {call.name!r} of tool {call.tool.name!r} was not approved ({decision.decision}, "
                f"{decision.resolver}): {decision.reason}"
            )

    def _within(self, call: Call) -> Self:
        """The `ctx` of a stepped tool: the same run, with names of its own."""
        inner = copy.copy(self)
        inner._prefix, inner._turns = f"{call.name}/", {}  # noqa: SLF001 - a copy of ourselves
        return inner


class Context(BaseContext):
    """The `ctx` of a plain function."""

    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs `fn(*args, **kwargs)` once for this submission and returns its output as it was recorded.

        The record exists at most once; the body runs again only if a crash came before its record. The output must
        be JSON, and what is returned has been through JSON. Raises `StepError`, or what `fn` raises.
        """
        name = self._take_name(name)
        recorded = self._attempt.recorded(name)
        if recorded is None:
            self._attempt.boundary()
            recorded = encode_output(f"step {name!r}", fn(*args, **kwargs))
            self._attempt.record_step(name, recorded)
        return canonical.parse(recorded)

    def call_tool(
        self,
        tool: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        name: str | None = None,
        approval: bool = False,
        expires_in: float | timedelta | None = None,
        **more: Any,
    ) -> Any:
        """Calls a tool and returns its result as it was recorded; the call is recorded before and after it runs.

        `tool` is the name of a declared one, or a function (an ordinary tool). Its keyword arguments are JSON, given
        as they are or in the mapping `arguments`. `name` tells the calls of one run apart; without it the first call
        of a tool has the tool's name. With `approval` a person is asked first, for at most `expires_in`.

        Once recorded, the tool never runs again for this call. What happens to a call that was begun and has no
        recorded result is told by the tool's kind; an ordinary one is shown to a person.

        Raises `ToolFailed` (also on a replay), `ApprovalDenied`, and with nothing written: `UnknownTool`,
        `CallRefused`, `BudgetExhausted`, `StepError`.
        """
        call = self._call(tool, arguments, name, more)
        if approval:
            self._take_name(call.name.removeprefix(self._prefix), "approval")
            self._approved(call, expires_in)
        begun = calling.begin(self._attempt, call)
        if isinstance(begun, Try):
            begun = calling.perform(self._attempt, begun, self._within(call))
        return call.value(begun)

    def followups(self, limit: int = joining.MAX_AT_ONCE) -> list[Any]:
        """Takes along what was submitted to this thread meanwhile: the inputs of the queued submissions of this agent.

        They join this run and settle with it, with its outcome. Costs one commit, also when nothing is queued.
        """
        return joining.followups(self._attempt, self._name_or_turn(None, "followups"), limit)

    def approval(
        self, name: str, tool: str, arguments: Any = None, *, expires_in: float | timedelta | None = None
    ) -> Decision:
        """Asks a person whether `tool` may be done with `arguments`, and waits without a worker for the decision.

        The decision is true if approved. With `expires_in` (seconds, or a `timedelta`) it is `expired` if nobody
        decides in time.
        """
        name = self._take_name(name, "approval")
        return approvals.ask(self._attempt, name, tool, arguments, optional_duration(expires_in))

    def wait_event(self, event: str, *, timeout: float | timedelta | None = None, name: str | None = None) -> Any:
        """The payload of the next event of that name sent to this thread; waits for it without a worker.

        Raises `EventTimedOut` if `timeout` (seconds, or a `timedelta`) passes first.
        """
        return events.wait(self._attempt, self._name_or_turn(name, "event"), event, optional_duration(timeout))

    def sleep(self, duration: float | timedelta, *, name: str | None = None) -> None:
        """Rests for `duration` (seconds, or a `timedelta`) without a worker, counted from when it first came here.

        The attempt ends; the handler is run again from its top when the time has come, and its steps are replayed.
        """
        timers.sleep(self._attempt, self._name_or_turn(name, "timer"), as_duration(duration))

    def sleep_until(self, moment: datetime, *, name: str | None = None) -> None:
        """As `sleep`, until a moment of the database's clock; one that has passed costs a record and no wait."""
        timers.sleep_until(self._attempt, self._name_or_turn(name, "timer"), moment)


def optional_duration(duration: float | timedelta | None) -> timedelta | None:
    """As `as_duration`; nothing stays nothing."""
    return None if duration is None else as_duration(duration)


def as_duration(duration: float | timedelta) -> timedelta:
    """Seconds or a `timedelta` as a `timedelta`. Raises `StepError` for what is not a time to wait."""
    try:
        made = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
    except (TypeError, ValueError, OverflowError):
        raise StepError("a duration is a number of seconds or a timedelta") from None
    if made < timedelta():
        raise StepError("a duration cannot be negative")
    return made


def encode_output(what: str, value: Any) -> Json:
    """The canonical text of an output. Raises `StepError` if it is not JSON or too large."""
    if isawaitable(value):
        if hasattr(value, "close"):
            value.close()
        raise StepError(f"{what} gave a coroutine; only an `async def` handler can await it")
    try:
        text = canonical.encode(value)
    except NotJson as error:
        raise StepError(f"the output of {what} is not JSON: {error}") from None
    size, maximum = canonical.size(text), get_settings().max_step_result_bytes
    if size > maximum:
        raise StepError(f"the output of {what} has {size} bytes; at most {maximum} are allowed")
    return text
