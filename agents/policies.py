"""What the host project says about what a run intends: may this tool run, need a person be asked.

Foreign code, run outside any transaction; `AGENTS["TOOL_AUTHORIZER"]` and `AGENTS["APPROVAL_POLICY"]` name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import isawaitable
from typing import Any
from uuid import UUID

from django.utils.module_loading import import_string

from agents import canonical
from agents.attempt import Attempt, logger
from agents.canonical import Json
from agents.conf import get_settings
from agents.errors import MAX_FAILURE
from maintenance.errors import INTERRUPTIONS, RuntimeFailed, bounded, described, kind_of

NO_REASON = "the host project does not allow it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intended:
    """What a run is about to do. A later attempt that comes by the same place gives the same."""

    thread_id: str
    submission_id: UUID
    agent: str
    principal: str
    """Who submitted the work."""
    input: Any
    """The input of the submission, as it is stored."""
    name: str
    """Which call, or which question, of the run it is."""
    tool: str
    kind: str
    """The recorded kind of the tool; empty for `ctx.approval`, which names no declared one."""
    arguments: Any


@dataclass(frozen=True, slots=True)
class Approve:
    """It may be done; no person need be asked."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """It may not be done. The reason is recorded as it stands, so it must be safe to show."""

    reason: str = ""


def _intended(attempt: Attempt, name: str, tool: str, arguments: Json, kind: str = "") -> Intended:
    claimed = attempt.claimed
    return Intended(
        thread_id=attempt.thread_id,
        submission_id=claimed.submission_id,
        agent=claimed.agent,
        principal=claimed.principal,
        input=canonical.parse(claimed.input),
        name=name,
        tool=tool,
        kind=kind,
        arguments=canonical.parse(arguments),
    )


def refusal(attempt: Attempt, name: str, tool: str, arguments: Json, kind: str) -> str | None:
    """Why the tool authorizer does not let a call be made; `None` if it does, or if there is none.

    Raises `RuntimeFailed` if it has no answer: then nothing is allowed and nothing denied, and a later attempt asks
    again.
    """
    path = get_settings().tool_authorizer
    if path is None:
        return None
    what = _intended(attempt, name, tool, arguments, kind)
    try:
        answer = _ask(path, what)
    except INTERRUPTIONS:
        raise
    except Exception as error:
        logger.warning("tool.authorizer_raised", tool=what.tool, call=what.name, kind=kind_of(error), exc_info=error)
        raise RuntimeFailed(f"the tool authorizer failed: {described(error)}") from error
    if answer is True:
        return None
    if answer is False:
        return NO_REASON
    if isinstance(answer, Deny):
        return str(answer.reason) or NO_REASON
    raise RuntimeFailed(f"the tool authorizer gave no answer but a {_class_of(answer)}")


def decision(attempt: Attempt, name: str, tool: str, arguments: Json) -> Approve | Deny | None:
    """What the approval policy decides; `None` (also if it fails, or there is none) leaves it to a person."""
    path = get_settings().approval_policy
    if path is None:
        return None
    what = _intended(attempt, name, tool, arguments)
    try:
        answer = _ask(path, what)
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - a policy that fails has decided nothing
        logger.warning("approval.policy_raised", tool=what.tool, name=what.name, kind=kind_of(error), exc_info=error)
        return None
    if isinstance(answer, Approve | Deny):
        return type(answer)(bounded(str(answer.reason), MAX_FAILURE))
    if answer is not None:
        logger.warning("approval.policy_unfit", tool=what.tool, name=what.name, kind=_class_of(answer))
    return None


def _class_of(value: object) -> str:
    return bounded(type(value).__name__, 80)


def _ask(path: str, what: Intended) -> object:
    answer: object = import_string(path)(what)
    if isawaitable(answer) and hasattr(answer, "close"):
        # No answer, and nothing that Python should report as never awaited.
        answer.close()
    return answer
