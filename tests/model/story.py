"""What the machine's agents do: each input is a script of verbs, and every effect is counted outside the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agents import tools
from agents.api import Context, Done, NeverStarted, OpenCall, OutcomeUnknown
from agents.errors import AgentFailure, EventTimedOut, RetryLater, ToolFailed
from agents.testing import agent_for_test
from agents.tools import Tool

AGENT = "story"
NEWS = "news"

Call = tuple[str, str]
"""A submission and the name of one of its calls."""


@dataclass
class World:
    """Everything outside the database. It forgets nothing, whoever dies."""

    began: list[UUID] = field(default_factory=list)
    """Submissions in the order in which their handlers were first entered."""
    charged: Counter[Call] = field(default_factory=Counter)
    """Effects of ordinary calls."""
    mailed: dict[Call, set[str]] = field(default_factory=dict)
    """The keys under which an idempotent call had its effect."""
    shipped: Counter[Call] = field(default_factory=Counter)
    refused: set[Call] = field(default_factory=set)
    """Where a handler has asked for a later time once."""

    def enter(self, submission: UUID) -> None:
        if submission not in self.began:
            self.began.append(submission)


def _step(_: World, ctx: Context, name: str) -> Any:
    return ctx.step(name, lambda: name)


def _charge(_: World, ctx: Context, name: str) -> Any:
    return _called(ctx, "model-charge", name)


def _telegraph(_: World, ctx: Context, name: str) -> Any:
    return _called(ctx, "model-telegraph", name)


def _mail(_: World, ctx: Context, name: str) -> Any:
    return _called(ctx, "model-mail", name)


def _ship(_: World, ctx: Context, name: str) -> Any:
    return _called(ctx, "model-ship", name)


def _called(ctx: Context, tool: str, name: str) -> Any:
    try:
        return ctx.call_tool(tool, submission=str(ctx.submission_id), call=name, name=name)
    except ToolFailed as failed:
        return failed.reason


def _sleep(_: World, ctx: Context, name: str) -> None:
    ctx.sleep(10, name=name)


def _ask(_: World, ctx: Context, name: str) -> str:
    return ctx.approval(name, "model-charge", {}).decision


def _ask_soon(_: World, ctx: Context, name: str) -> str:
    return ctx.approval(name, "model-charge", {}, expires_in=20).decision


def _hear(_: World, ctx: Context, name: str) -> Any:
    return ctx.wait_event(NEWS, name=name)


def _hear_soon(_: World, ctx: Context, name: str) -> Any:
    try:
        return ctx.wait_event(NEWS, timeout=15, name=name)
    except EventTimedOut:
        return "silence"


def _followups(_: World, ctx: Context, name: str) -> int:
    del name
    return len(ctx.followups(2))


def _later(world: World, ctx: Context, name: str) -> str:
    place = (str(ctx.submission_id), name)
    if place not in world.refused:
        world.refused.add(place)
        raise RetryLater("not now", after=30)
    return "now"


def _fail(_: World, ctx: Context, name: str) -> None:
    del ctx
    raise AgentFailure(name)


VERBS: dict[str, Callable[[World, Context, str], Any]] = {
    "step": _step,
    "charge": _charge,
    "telegraph": _telegraph,
    "mail": _mail,
    "ship": _ship,
    "sleep": _sleep,
    "ask": _ask,
    "ask soon": _ask_soon,
    "hear": _hear,
    "hear soon": _hear_soon,
    "followups": _followups,
    "later": _later,
    "fail": _fail,
}
"""What a script may hold."""


@contextmanager
def told_in(world: World) -> Iterator[None]:
    """Declares agent and tools whose effects go to this world."""

    def story(ctx: Context, script: list[str]) -> list[Any]:
        world.enter(ctx.submission_id)
        return [VERBS[verb](world, ctx, f"{verb} {place}") for place, verb in enumerate(script)]

    with ExitStack() as stack:
        stack.enter_context(agent_for_test(story, name=AGENT))
        for tool in _tools(world):
            tools.register(tool)
            stack.callback(tools.unregister, tool.name)
        yield


def _tools(world: World) -> list[Tool]:
    def charge(submission: str, call: str) -> str:
        world.charged[submission, call] += 1
        return "charged"

    def telegraph(submission: str, call: str) -> str:
        world.charged[submission, call] += 1
        raise OutcomeUnknown("the line went dead")

    def mail(submission: str, call: str, idempotency_key: str) -> str:
        world.mailed.setdefault((submission, call), set()).add(idempotency_key)
        return "mailed"

    def ship(submission: str, call: str) -> str:
        world.shipped[submission, call] += 1
        return "shipped"

    def find(open_call: OpenCall) -> Done | NeverStarted:
        asked = open_call.arguments
        return Done("shipped") if world.shipped[asked["submission"], asked["call"]] else NeverStarted()

    return [
        Tool(name="model-charge", function=charge),
        Tool(name="model-telegraph", function=telegraph),
        Tool(name="model-mail", function=mail, kind="idempotent"),
        Tool(name="model-ship", function=ship, kind="reconciled", reconcile=find),
    ]
