"""Accepting and reading on somebody's behalf: the same as without an actor, once the actor may."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from asgiref.sync import sync_to_async

from agents import admission, log, waiting
from agents import settlement as settlements
from agents.admission import Receipt
from agents.conf import get_settings
from agents.errors import AgentInputError
from agents.log import Record
from agents.naming import SubmissionLike, check_thread_id, id_of
from agents.operations.authorize import Actor, Operation, authorize
from agents.settlement import Settlement


def submit(
    thread_id: str,
    agent: str,
    input: Any,  # noqa: A002 - the word of the door
    *,
    idempotency_key: str | None = None,
    principal: str = "",
    actor: Actor = None,
) -> Receipt:
    """Accepts one submission at the end of the thread's queue; the thread is made if it is new.

    One commit, or part of the caller's own transaction (the receipt then counts from that commit). With a key, the
    same call again returns the same receipt and writes nothing; without one every call is a new submission.
    `principal` scopes the key; `actor`, if there is one, needs the permission.

    Raises, with nothing written: `OperationDenied`, `UnknownAgent`, `AgentInputError`, `AdmissionLimitExceeded`,
    `AdmissionConflict` (same key and principal, other payload or agent), `MutationRefused` (the caller's transaction
    has touched another thread). `AdmissionUncertain`: the database failed; whether it kept the submission, the same
    call with the same key tells.
    """
    if actor is not None:
        authorize(actor, Operation.SUBMIT, thread_id=thread_id)
    return admission.submit(thread_id, agent, input, idempotency_key=idempotency_key, principal=principal)


def settlement(submission: SubmissionLike, *, actor: Actor = None) -> Settlement | None:
    """What came of a submission; `None` while it is owed. Raises `OperationDenied`, `UnknownSubmission`."""
    submission_id = id_of(submission)
    authorize(actor, Operation.OBSERVE, submission_id=submission_id)
    return settlements.read(submission_id)


def wait_for_settlement(
    submission: SubmissionLike, timeout: float | timedelta | None = None, *, actor: Actor = None
) -> Settlement:
    """Waits up to `timeout` (seconds; without it, as long as it takes) and returns the settlement.

    Raises `NotSettledInTime` (the work is still owed), `OperationDenied`, `UnknownSubmission`, `MutationRefused`
    inside a transaction.
    """
    submission_id = id_of(submission)
    authorize(actor, Operation.OBSERVE, submission_id=submission_id)
    return waiting.wait(submission_id, timeout)


async def await_for_settlement(
    submission: SubmissionLike,
    timeout: float | timedelta | None = None,  # noqa: ASYNC109 - the word of the sync twin
    *,
    actor: Actor = None,
) -> Settlement:
    """As `wait_for_settlement`, without holding the event loop."""
    submission_id = id_of(submission)
    await sync_to_async(authorize)(actor, Operation.OBSERVE, submission_id=submission_id)
    return await waiting.await_(submission_id, timeout)


def progress(thread_id: str, after: int = 0, limit: int | None = None, *, actor: Actor = None) -> list[Record]:
    """The records of the thread's log beyond sequence `after`, in order: a page of what is committed now.

    Raises `OperationDenied`, `UnknownThread`, `AgentInputError` for a page of no or too many records.
    """
    authorize(actor, Operation.OBSERVE, thread_id=thread_id)
    check_thread_id(thread_id)
    most = get_settings().max_log_page
    if limit is not None and not 1 <= limit <= most:
        raise AgentInputError(f"a page holds 1 to {most} records, not {limit}")
    page = log.read(thread_id, after, limit)
    if not page:
        log.tail_of(thread_id)
    return page
