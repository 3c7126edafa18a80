"""Tools that answer from a script and count: for a test, in place of those that reach other systems."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agents import canonical, tools
from agents.canonical import Json
from agents.tools import Tool
from maintenance.testing import Crash


@dataclass(frozen=True, slots=True)
class _Deadly:
    """An effect after which the process dies."""


def crash_after_effect() -> Any:
    """An answer of a script: the tool has its effect, then its process dies before the result can be recorded."""
    return _Deadly()


@dataclass
class Script:
    """What a scripted tool answers, one entry for each call, and what it was asked."""

    answers: deque[Any]
    calls: list[dict[str, Any]] = field(default_factory=list)
    """The arguments of each call that reached the tool, in order: each stands for one effect."""
    beyond: int = 0
    """Calls for which there was no answer."""

    def __len__(self) -> int:
        return len(self.calls)

    def answer(self, arguments: Json) -> Any:
        """Notes the call and gives its answer: returned, or raised if it is an exception."""
        if not self.answers:
            self.beyond += 1
            raise AssertionError(self.exhausted)
        self.calls.append(canonical.parse(arguments))
        given = self.answers.popleft()
        if isinstance(given, _Deadly):
            raise Crash("a scripted tool")
        if isinstance(given, BaseException):
            raise given
        return given

    @property
    def exhausted(self) -> str:
        return f"the script has {len(self.calls)} answers, and the tool was called {self.beyond} times more"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scripted(Tool):
    """A declared tool whose function is never run."""

    script: Script

    def bound(self, arguments: Json, key: str, context: Any) -> Callable[[], Any]:  # noqa: ARG002 - a stand-in
        return lambda: self.script.answer(arguments)


@contextmanager
def scripted_tool(tool: str | Callable[..., Any], *answers: Any) -> Iterator[Script]:
    """Replaces a declared tool for the time of the block: its calls get the answers, in order.

    `tool` is its name or its function; kind and reconciler stay as declared. An answer that is an exception is raised,
    `crash_after_effect()` ends the process after the effect. A call beyond the script
    fails, and so does the block.
    """
    declared = tools.get(tool)
    was_declared = tools.find(declared.name) is not None
    script = Script(deque(answers))
    fields = {name: getattr(declared, name) for name in Tool.__dataclass_fields__}
    tools.unregister(declared.name)
    tools.register(_Scripted(**fields, script=script))
    try:
        yield script
    finally:
        tools.unregister(declared.name)
        if was_declared:
            tools.register(declared)
    if script.beyond:
        # To the agent this was a failing tool, which it may have caught.
        raise AssertionError(script.exhausted)
