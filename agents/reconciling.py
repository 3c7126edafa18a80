"""Asking a tool's reconciler what became of an open call: foreign code, run by recovery outside any transaction."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable

from asgiref.sync import async_to_sync

from agents import canonical, tools
from agents.attempt import logger
from agents.canonical import Json, NotJson
from agents.models import ToolCall
from agents.tools import Answer, Done, Failed, NeverStarted, OpenCall, SafeRetry, StillUnknown
from maintenance.errors import INTERRUPTIONS, bounded, described, kind_of
from maintenance.ports import Work


def ask(work: Work, row: ToolCall) -> Answer:
    """What the tool's reconciler says, outside any transaction. What it raises is no answer."""
    declared = tools.find(row.tool)
    if declared is None or declared.reconcile is None:
        return StillUnknown(f"no reconciler of tool {row.tool!r} is declared in this worker")
    # Race closed: a pass that lost its thread would ask about a call that another one may be running. It also makes
    # the begin of this pass durable before foreign code runs: the begin's own commit may be relaxed.
    with work.fenced():
        pass
    try:
        answer: object = declared.reconcile(_shown(work, row))
        if isawaitable(answer):
            answer = async_to_sync(_awaited)(answer)
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - a reconciler that fails has not answered
        logger.warning("reconciler.raised", tool=row.tool, call=row.call, kind=kind_of(error), exc_info=error)
        return StillUnknown(f"the reconciler failed: {described(error)}")
    return _checked(answer)


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _shown(work: Work, row: ToolCall) -> OpenCall:
    return OpenCall(
        thread_id=work.thread_id,
        submission_id=row.submission_id,
        call=row.call,
        tool=row.tool,
        tries=row.tries,
        arguments=canonical.parse(row.arguments),
        digest=tools.digest_of(row.tool, Json(row.arguments)),
        idempotency_key=tools.key_of(row.submission_id, row.turn, row.call),
        prepared_at=row.prepared_at,
    )


def _checked(answer: object) -> Answer:
    """The answer, if it is one that can be recorded."""
    if not isinstance(answer, Done | Failed | NeverStarted | SafeRetry | StillUnknown):
        return StillUnknown(f"the reconciler gave no answer but a {bounded(type(answer).__name__, 80)}")
    if isinstance(answer, Done):
        try:
            return Done(canonical.encode(answer.result))
        except NotJson as error:
            return StillUnknown(f"the reconciler's result is not JSON: {error}")
    return answer
