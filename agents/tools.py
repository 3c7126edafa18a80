"""Tools: functions with an effect outside, declared with what may be done when nobody knows whether they had it.

Imports no model, so that an app's `durable_agents.py` can declare tools at any time.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args
from uuid import UUID

from agents import canonical
from agents.canonical import Json, NotJson
from agents.conf import get_settings
from agents.errors import CallRefused, DuplicateTool, UnknownTool
from agents.registry import MAX_NAME, describe, is_async

Kind = Literal["ordinary", "idempotent", "reconciled", "stepped"]

RERUNNABLE: frozenset[str] = frozenset({"idempotent", "stepped"})
"""Kinds of which an open call is simply run again."""

KEY = "idempotency_key"
"""A tool that takes a parameter of this name gets the call's key in it."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that was prepared and has no recorded result, as a reconciler sees it."""

    thread_id: str
    submission_id: UUID
    call: str
    tool: str
    tries: int
    arguments: Any
    digest: str
    """SHA-256 over tool and arguments."""
    idempotency_key: str
    """The key that the tool got, if it takes one."""
    prepared_at: datetime


@dataclass(frozen=True, slots=True)
class Done:
    """It happened, with this result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """It happened and failed; the text is recorded as it stands."""

    error: str


@dataclass(frozen=True, slots=True)
class NeverStarted:
    """It had no effect: the next attempt runs it."""


@dataclass(frozen=True, slots=True)
class SafeRetry:
    """It may be repeated without harm: the next attempt runs it."""


@dataclass(frozen=True, slots=True)
class StillUnknown:
    """Nobody can tell: a person has to."""

    reason: str = "the reconciler cannot tell"


Answer = Done | Failed | NeverStarted | SafeRetry | StillUnknown
Reconcile = Callable[[OpenCall], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A declared function and what may be done with a call of it whose outcome nobody recorded."""

    name: str
    function: Callable[..., Any]
    kind: Kind = "ordinary"
    reconcile: Reconcile | None = None
    max_result_bytes: int | None = None

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    @property
    def result_limit(self) -> int:
        return self.max_result_bytes or get_settings().max_step_result_bytes

    def encode(self, arguments: Mapping[str, Any]) -> Json:
        """The canonical text of the arguments. Raises `CallRefused` if they do not fit or are not JSON."""
        try:
            text = canonical.encode(dict(arguments))
        except NotJson as error:
            raise CallRefused(f"an argument of tool {self.name!r} is not JSON: {error}") from None
        size, maximum = canonical.size(text), get_settings().max_input_bytes
        if size > maximum:
            raise CallRefused(f"the arguments of tool {self.name!r} have {size} bytes; at most {maximum} are allowed")
        self._check(arguments)
        return text

    def bound(self, arguments: Json, key: str, context: Any) -> Callable[[], Any]:
        """The call that is left to be made: with the recorded arguments, the key, and `ctx` if it is stepped."""
        keywords = canonical.parse(arguments)
        if KEY in self._parameters():
            keywords.setdefault(KEY, key)
        leading = (context,) if self.kind == "stepped" else ()
        return lambda: self.function(*leading, **keywords)

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Refuses what the function would not take, while nothing is written yet."""
        leading = (None,) if self.kind == "stepped" else ()
        keywords = dict(arguments)
        if KEY in self._parameters():
            keywords.setdefault(KEY, "")
        try:
            inspect.signature(self.function).bind(*leading, **keywords)
        except TypeError as error:
            raise CallRefused(f"tool {self.name!r} cannot be called like that: {error}") from None
        except ValueError:
            return  # a builtin that does not tell its signature

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.function).parameters
        except ValueError:
            return {}


_tools: dict[str, Tool] = {}


def tool(
    name: str, *, kind: Kind | None = None, reconcile: Reconcile | None = None, max_result_bytes: int | None = None
) -> Callable[[Function], Function]:
    """Declares a function as the tool `name`; the function itself is returned unchanged.

    `kind` says what happens to a call that was begun and has no recorded result, because its process died:

    - `ordinary` (the default): it is shown to a person and never run again by the system;
    - `idempotent`: it is run again under the same `idempotency_key`;
    - `reconciled` (also meant by giving `reconcile`): that function looks up what happened;
    - `stepped`: it is entered again from its top. All its effects are in `ctx.step(...)` of the `ctx` that it gets
      as its first argument; those that are recorded are not repeated.

    What has no effect outside needs no tool: `ctx.step` records its result. Any ordinary exception of a tool ends its
    call as failed; one that cannot tell whether it had its effect (a time-out after the request was sent) raises
    `OutcomeUnknown`, one that certainly had none and may be tried later `RetryLater` (or `NeedsPerson`, if only a
    person can make a further try worth it), one that has a failure to tell `ToolFailure`.

    Raises `DuplicateTool` if the name is taken, `ValueError` for a declaration that contradicts itself.
    """
    meant: Kind = kind or ("ordinary" if reconcile is None else "reconciled")
    if meant not in get_args(Kind):
        message = f"a tool is one of {', '.join(get_args(Kind))}, not {meant!r}"
        raise ValueError(message)
    if (meant == "reconciled") != (reconcile is not None):
        message = "a reconciled tool needs `reconcile`, and no other kind has one"
        raise ValueError(message)

    def declare(function: Function) -> Function:
        register(Tool(name=name, function=function, kind=meant, reconcile=reconcile, max_result_bytes=max_result_bytes))
        return function

    return declare


def register(made: Tool) -> None:
    """Declares a tool. Raises `DuplicateTool`, `ValueError` for a name that cannot be stored."""
    if not made.name or len(made.name) > MAX_NAME or not made.name.isprintable():
        message = f"a tool's name is 1 to {MAX_NAME} printable characters"
        raise ValueError(message)
    known = _tools.get(made.name)
    if known is not None and _identity(known) != _identity(made):
        places = f"{describe(known.function)} and {describe(made.function)}"
        raise DuplicateTool(f"two tools are declared as {made.name!r}: {places}")
    _tools[made.name] = made


def unregister(name: str) -> None:
    """Forgets a tool (for tests)."""
    _tools.pop(name, None)


def find(name: str) -> Tool | None:
    """The tool of that name, if this process knows it."""
    return _tools.get(name)


def get(what: str | Callable[..., Any], name: str | None = None) -> Tool:
    """The tool of that name, or of that function; an undeclared function is an ordinary tool.

    `name` is used for a function that has none. Raises `UnknownTool` with names that look alike, `CallRefused`.
    """
    if isinstance(what, str):
        if what not in _tools:
            raise UnknownTool(what, get_close_matches(what, _tools, n=3))
        return _tools[what]
    if not callable(what):
        raise CallRefused("a tool is the name of a declared one, or a function")
    declared = next((known for known in _tools.values() if known.function is what), None)
    return declared or _undeclared(what, name)


def key_of(submission_id: UUID, turn: int, call: str) -> str:
    """The idempotency key of a call: the same for every try, plain enough for any protocol's header."""
    return str(uuid.uuid5(submission_id, f"tool-call:{turn}:{call}"))


def digest_of(tool_name: str, arguments: Json) -> str:
    """SHA-256 over what would be done: the tool and its arguments."""
    return canonical.digest(canonical.compose({"arguments": arguments, "tool": tool_name}))


def _undeclared(function: Callable[..., Any], name: str | None) -> Tool:
    own = getattr(function, "__name__", "")
    known_as = own if own.isidentifier() else name
    if not known_as:
        raise CallRefused("a function without a name needs `name=`, or a declaration with @tool")
    return Tool(name=known_as[:MAX_NAME], function=function)


def _identity(made: Tool) -> tuple[object, ...]:
    reconcile = None if made.reconcile is None else describe(made.reconcile)
    return describe(made.function), made.kind, reconcile, made.max_result_bytes
