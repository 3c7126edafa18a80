"""What a handler gets as `ctx`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any
from uuid import UUID

import structlog

from agents import approvals, canonical, events, joining, timers
from agents.approvals import Decision
from agents.attempt import Attempt
from agents.canonical import Json, NotJson
from agents.conf import get_settings
from agents.errors import StepError

MAX_STEP_NAME = 200


class BaseContext:
    """Who and where the handler is, and whether it should stop soon."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
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
        if not 0 < len(name) <= MAX_STEP_NAME or not name.isprintable():
            raise StepError(f"a {kind}'s name is 1 to {MAX_STEP_NAME} printable characters")
        if (kind, name) in self._used:
            raise StepError(f"{kind} {name!r} was used twice in one run; each needs a name of its own")
        self._used.add((kind, name))
        return name

    def _name_or_turn(self, name: str | None, kind: str) -> str:
        """The given name, or which use of this kind it is: a replay comes by in the same order."""
        self._turns[kind] = self._turns.get(kind, 0) + 1
        return self._take_name(name or str(self._turns[kind]), kind)


class Context(BaseContext):
    """The `ctx` of a plain function."""

    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs `fn(*args, **kwargs)` once for this submission and returns its output as it was recorded.

        The record exists at most once; the body runs again only if a crash came before its record. The output must
        be JSON, and what is returned has been through JSON. Raises `StepError`, or what `fn` raises.
        """
        self._take_name(name)
        recorded = self._attempt.recorded(name)
        if recorded is None:
            self._attempt.boundary()
            recorded = encode_output(f"step {name!r}", fn(*args, **kwargs))
            self._attempt.record_step(name, recorded)
        return canonical.parse(recorded)

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
        self._take_name(name, "approval")
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
