"""The agents and tools of the matrix. Each input names the file in which effects are noted."""

from __future__ import annotations

from typing import Any

from agents import agent, api, tool
from agents.api import Context, Done, NeverStarted, OpenCall, OutcomeUnknown
from agents.errors import RetryLater
from maintenance import drain, renewal
from tests.process.crash import effects

SLEEP = 60.0
"""Seconds, of a clock that is moved."""


@tool("charge")
def charge(path: str) -> str:
    """Ordinary: it must never run twice for one call."""
    effects.note(path, "charge")
    return "charged"


@tool("telegraph")
def telegraph(path: str) -> str:
    """Ordinary, and it cannot tell what became of it."""
    effects.note(path, "telegraph")
    raise OutcomeUnknown("the line went dead")


@tool("mail", kind="idempotent")
def mail(path: str, idempotency_key: str) -> str:
    effects.note(path, "mail", idempotency_key)
    return "mailed"


def was_shipped(call: OpenCall) -> Done | NeverStarted:
    return Done("shipped") if effects.counts(call.arguments["path"])["ship"] else NeverStarted()


@tool("ship", reconcile=was_shipped)
def ship(path: str) -> str:
    effects.note(path, "ship")
    return "shipped"


@tool("pack", kind="stepped")
def pack(ctx: Context, path: str) -> list[str]:
    return [ctx.step(part, _part, path, part) for part in ("box", "label")]


def _part(path: str, part: str) -> str:
    effects.note(path, part)
    return part


@agent("crash-steps")
def steps(ctx: Context, given: dict[str, Any]) -> list[str]:
    return [ctx.step(part, _part, given["path"], part) for part in ("one", "two", "three")]


@agent("crash-tool")
def call(ctx: Context, given: dict[str, Any]) -> Any:
    return ctx.call_tool(given["tool"], path=given["path"])


@agent("crash-sleep")
def sleep(ctx: Context, given: dict[str, Any]) -> str:
    ctx.sleep(SLEEP)
    return _part(given["path"], "awake")


@agent("crash-approval")
def ask(ctx: Context, given: dict[str, Any]) -> str:
    return ctx.approval("may I?", "charge", {"path": given["path"]}).decision


@agent("crash-event")
def hear(ctx: Context, given: dict[str, Any]) -> Any:
    return ctx.wait_event("news")


@agent("crash-retry")
def retry(ctx: Context, given: dict[str, Any]) -> str:
    effects.note(given["path"], "tried")
    if len(effects.lines(given["path"])) == 1:
        raise RetryLater("not yet", after=SLEEP)
    return "at last"


@agent("crash-join")
def host(ctx: Context, given: dict[str, Any]) -> list[Any]:
    return [given["n"], *(follower["n"] for follower in ctx.followups())]


@agent("crash-abort-itself")
def abort_itself(ctx: Context, given: dict[str, Any]) -> None:
    api.abort(ctx.submission_id, actor="somebody", reason="while it runs")
    while True:
        ctx._attempt.boundary()


@agent("crash-yield")
def yielding(ctx: Context, given: dict[str, Any]) -> int:
    if ctx.attempt == 1:
        drain.request()
    return int(ctx.step("one", lambda: 1))


@agent("crash-renew")
def renewing(ctx: Context, given: dict[str, Any]) -> bool:
    return renewal.renew(ctx._attempt.work.lease)  # type: ignore[attr-defined]


@agent("crash-echo")
def echo(ctx: Context, given: dict[str, Any]) -> Any:
    return given["n"]
