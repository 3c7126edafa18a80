"""The door of agents: accept work, read what came of it. Each verb has an async twin with an `a` before its name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from agents import log, resolutions, waiting
from agents import settlement as settlements
from agents.admission import Receipt, submit
from agents.drivers.asynchronous import AsyncContext
from agents.drivers.context import Context
from agents.errors import (
    AgentFailure,
    ApprovalDenied,
    BudgetExhausted,
    CallNotUnknown,
    CallRefused,
    OutcomeUnknown,
    ToolFailed,
    ToolFailure,
    UnknownResolutionConflict,
    UnknownSubmission,
    UnknownTool,
)
from agents.log import Record
from agents.models import ResolutionKind
from agents.operations.verify import Report, verify
from agents.registry import agent
from agents.resolutions import Resolution
from agents.settlement import Settlement
from agents.tools import Done, Failed, NeverStarted, OpenCall, SafeRetry, StillUnknown, tool

SubmissionLike = Receipt | Settlement | UUID | str
"""Whatever names a submission: its receipt, its settlement, its id."""

__all__ = [
    "AgentFailure",
    "ApprovalDenied",
    "AsyncContext",
    "BudgetExhausted",
    "CallNotUnknown",
    "CallRefused",
    "Context",
    "Done",
    "Failed",
    "NeverStarted",
    "OpenCall",
    "OutcomeUnknown",
    "Receipt",
    "Record",
    "Report",
    "Resolution",
    "ResolutionKind",
    "SafeRetry",
    "Settlement",
    "StillUnknown",
    "ToolFailed",
    "ToolFailure",
    "UnknownResolutionConflict",
    "UnknownTool",
    "agent",
    "aprogress",
    "aresolve_unknown",
    "asettlement",
    "asubmit",
    "averify",
    "await_for_settlement",
    "progress",
    "resolve_unknown",
    "settlement",
    "submit",
    "tool",
    "verify",
    "wait_for_settlement",
]


def settlement(submission: SubmissionLike) -> Settlement | None:
    """What came of a submission; `None` while it is owed. Raises `UnknownSubmission`."""
    return settlements.read(_id_of(submission))


def wait_for_settlement(submission: SubmissionLike, timeout: float | timedelta | None = None) -> Settlement:
    """Waits up to `timeout` (seconds; without it, as long as it takes) and returns the settlement.

    Raises `NotSettledInTime` (the work is still owed), `UnknownSubmission`, `MutationRefused` inside a transaction.
    """
    return waiting.wait(_id_of(submission), timeout)


def progress(thread_id: str, after: int = 0, limit: int | None = None) -> list[Record]:
    """The records of the thread's log beyond sequence `after`, in order: a page of what is committed now."""
    return log.read(thread_id, after, limit)


def resolve_unknown(
    submission: SubmissionLike,
    call: str,
    resolution: ResolutionKind | str,
    *,
    result: Any = None,
    actor: str,
    reason: str,
    tries: int | None = None,
) -> Resolution:
    """A person's answer about an unknown call: what became of it, or that the submission is given up.

    `completed-with-result` takes the `result`, `failed-with-error` the error's text as `result`; `never-started` and
    `safe-retry` let the next attempt run the call again, `abort` ends the submission. Once every unknown call of the
    submission is answered, the run goes on. The same answer again gives the first one. `tries` is the try that the
    person was shown: an answer about an earlier one is refused.

    Raises, with nothing written: `UnknownSubmission`, `CallNotUnknown`, `UnknownResolutionConflict`, `CallRefused`.
    """
    return resolutions.resolve(
        _id_of(submission), call, resolution, result=result, author=actor, reason=reason, tries=tries
    )


asubmit = sync_to_async(submit)
asettlement = sync_to_async(settlement)
aprogress = sync_to_async(progress)
averify = sync_to_async(verify)
aresolve_unknown = sync_to_async(resolve_unknown)


async def await_for_settlement(
    submission: SubmissionLike,
    timeout: float | timedelta | None = None,  # noqa: ASYNC109 - the word of the sync twin
) -> Settlement:
    """As `wait_for_settlement`, without holding the event loop."""
    return await waiting.await_(_id_of(submission), timeout)


def _id_of(submission: SubmissionLike) -> UUID:
    if isinstance(submission, Receipt | Settlement):
        return submission.submission_id
    try:
        return submission if isinstance(submission, UUID) else UUID(str(submission))
    except ValueError:
        raise UnknownSubmission("that is not the id of a submission") from None
