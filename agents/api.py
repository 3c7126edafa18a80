"""The door of agents: accept work, read what came of it. Each verb has an async twin with an `a` before its name."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from asgiref.sync import sync_to_async

from agents import log, waiting
from agents import settlement as settlements
from agents.admission import Receipt, submit
from agents.drivers.asynchronous import AsyncContext
from agents.drivers.context import Context
from agents.errors import AgentFailure, UnknownSubmission
from agents.log import Record
from agents.operations.verify import Report, verify
from agents.registry import agent
from agents.settlement import Settlement

SubmissionLike = Receipt | Settlement | UUID | str
"""Whatever names a submission: its receipt, its settlement, its id."""

__all__ = [
    "AgentFailure",
    "AsyncContext",
    "Context",
    "Receipt",
    "Record",
    "Report",
    "Settlement",
    "agent",
    "aprogress",
    "asettlement",
    "asubmit",
    "averify",
    "await_for_settlement",
    "progress",
    "settlement",
    "submit",
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


asubmit = sync_to_async(submit)
asettlement = sync_to_async(settlement)
aprogress = sync_to_async(progress)
averify = sync_to_async(verify)


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
