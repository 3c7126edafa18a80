"""Accepting work: a receipt means durable, and owed exactly one settlement."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connection
from uuid_utils.compat import uuid7

from agents import canonical, failpoints, hotpath, log, metrics, records, registry
from agents.canonical import Json
from agents.conf import get_settings
from agents.errors import AdmissionConflict, AdmissionLimitExceeded, AdmissionUncertain, AgentInputError
from agents.log import EMPTY, Batch
from agents.models import Submission, Thread
from agents.records import NewRecord, ThreadCreated
from agents.states import State
from maintenance import api as maintenance
from maintenance.errors import database_problem

MAX_THREAD_ID = 255
MAX_KEY = 256

QUEUE_DEPTH = "queue depth"
INPUT_BYTES = "input bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The acknowledgement of a submission. The same key and payload always give an equal one."""

    receipt_id: str
    submission_id: UUID
    thread_id: str
    agent: str
    queue_sequence: int
    """Its place in the thread's queue, from 1."""
    replayed: bool = field(default=False, compare=False)
    """It had been accepted before; this call wrote nothing."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A submission that was checked and encoded, before anything is written."""

    thread_id: str
    agent: str
    input: Json
    principal: str
    key: str

    @property
    def digest(self) -> str:
        return canonical.digest(self.input)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is stored under a proposal's key."""

    submission_id: UUID
    agent: str
    digest: str
    queue_sequence: int


class _AlreadyAdmitted(Exception):
    """Leaves the gate without a trace: the key turned out to be taken once the lock was held."""

    def __init__(self, found: _Found) -> None:
        self.found = found


def submit(
    thread_id: str,
    agent: str,
    input: Any,  # noqa: A002 - the word of the door
    *,
    idempotency_key: str | None = None,
    principal: str = "",
) -> Receipt:
    """Accepts one submission at the end of the thread's queue; the thread is made if it is new.

    One commit, or part of the caller's own transaction (the receipt then counts from that commit). With a key, the
    same call again returns the same receipt and writes nothing; without one every call is a new submission.

    Raises, with nothing written: `UnknownAgent`, `AgentInputError`, `AdmissionLimitExceeded`, `AdmissionConflict`
    (same key and principal, other payload or agent), `MutationRefused` (the caller's transaction has touched another
    thread). `AdmissionUncertain`: the database failed; whether it kept the submission, the same call with the same
    key tells.
    """
    proposal = _proposal(thread_id, agent, input, idempotency_key, principal)
    try:
        receipt = _submit(proposal, lookup=idempotency_key is not None)
    except (DatabaseError, InterfaceError) as error:
        raise AdmissionUncertain(f"{database_problem(error)}; submit it again with its key") from error
    metrics.submissions.labels("replayed" if receipt.replayed else "accepted").inc()
    return receipt


def _submit(proposal: _Proposal, *, lookup: bool) -> Receipt:
    depth, found = _look_up(proposal) if lookup else (0, None)
    if found is not None:
        return _replayed(proposal, found)
    _check_size(proposal)
    _check_depth(depth)
    failpoints.hit(failpoints.SUBMIT_BEFORE, proposal.thread_id)
    try:
        receipt = _admit(proposal)
    except _AlreadyAdmitted as lost:
        return _replayed(proposal, lost.found)
    failpoints.hit(failpoints.SUBMIT_AFTER, proposal.thread_id)
    return receipt


def _proposal(thread_id: str, agent: str, value: Any, key: str | None, principal: str) -> _Proposal:
    _check_text("thread_id", thread_id, 1, MAX_THREAD_ID)
    _check_text("principal", principal, 0, MAX_KEY)
    if key is not None:
        _check_text("idempotency_key", key, 1, MAX_KEY)
    return _Proposal(
        thread_id, agent, registry.get(agent).encode_input(value), principal, key or f"auto:{uuid.uuid4()}"
    )


def _check_text(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, str) or not low <= len(value) <= high or "\x00" in value:
        raise AgentInputError(f"{name} must be a text of {low} to {high} characters without NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise AgentInputError(f"{name} holds half of a surrogate pair") from None


def _check_size(proposal: _Proposal) -> None:
    actual, maximum = canonical.size(proposal.input), get_settings().max_input_bytes
    if actual > maximum:
        raise _limit(INPUT_BYTES, actual, maximum)


def _check_depth(depth: int) -> None:
    maximum = get_settings().max_queue_depth
    if depth >= maximum:
        raise _limit(QUEUE_DEPTH, depth, maximum)


def _look_up(proposal: _Proposal) -> tuple[int, _Found | None]:
    """How many unsettled submissions the thread holds, and what the key stands for."""
    with connection.cursor() as cursor:
        cursor.execute(_LOOK_UP, [proposal.thread_id, proposal.thread_id, proposal.principal, proposal.key])
        depth, submission_id, *rest = cursor.fetchone()
    if submission_id is None:
        return depth, None
    return depth, _Found(submission_id if isinstance(submission_id, UUID) else UUID(submission_id), *rest)


def _limit(name: str, actual: int, maximum: int) -> AdmissionLimitExceeded:
    metrics.submissions.labels(name).inc()
    return AdmissionLimitExceeded(limit=name, actual=actual, maximum=maximum)


_LOOK_UP = f"""
    SELECT d.depth, s.id, s.agent, s.input_digest, s.queue_sequence
      FROM (SELECT count(*) AS depth FROM {hotpath.SUBMISSION}
             WHERE thread_id = %s AND {hotpath.OPEN}) AS d
      LEFT JOIN {hotpath.SUBMISSION} AS s ON s.thread_id = %s AND s.principal = %s AND s.idempotency_key = %s
"""  # noqa: S608 - identifiers of our own models


def _admit(proposal: _Proposal) -> Receipt:
    """The one transaction. Raises `_AlreadyAdmitted` if another caller with the same key was faster."""
    submission_id = uuid7()
    # Race closed: two callers with one key, or for the last free place. The gate's lock lets the second decide only
    # after the first has committed; if it then has nothing to write, the exception takes the gate's bump back.
    with maintenance.mutation(proposal.thread_id) as mutation:
        place = _take_place(proposal, submission_id, mutation.now)
        failpoints.hit(failpoints.SUBMIT_ADMITTED, proposal.thread_id)
    return Receipt(
        receipt_id=records.receipt_id(submission_id),
        submission_id=submission_id,
        thread_id=proposal.thread_id,
        agent=proposal.agent,
        queue_sequence=place,
    )


def _take_place(proposal: _Proposal, submission_id: UUID, now: datetime) -> int:
    """Writes the submission at the end of the queue and returns its place there; makes the thread if need be."""
    insert = _insert_fused if hotpath.serves() else _insert_plain
    place = insert(proposal, submission_id, now)
    if place is None:
        _refuse_or_make_thread(proposal, now)
        place = insert(proposal, submission_id, now)
    if place is None:
        message = "the thread vanished while it was being made; do not delete rows in use"
        raise RuntimeError(message)
    return place


def _insert_fused(proposal: _Proposal, submission_id: UUID, now: datetime) -> int | None:
    return hotpath.admit(
        {
            "id": submission_id,
            "thread": proposal.thread_id,
            "depth": get_settings().max_queue_depth,
            "principal": proposal.principal,
            "key": proposal.key,
            "agent": proposal.agent,
            "input": str(proposal.input),
            "digest": proposal.digest,
            "now": now,
        }
    )


def _insert_plain(proposal: _Proposal, submission_id: UUID, now: datetime) -> int | None:
    """As the rule reads: the thread is there, the queue has room, the key is free."""
    thread = Thread.objects.filter(pk=proposal.thread_id).first()
    if thread is None or _depth(proposal.thread_id) >= get_settings().max_queue_depth:
        return None
    taken = Submission.objects.filter(
        thread_id=proposal.thread_id, principal=proposal.principal, idempotency_key=proposal.key
    )
    if taken.exists():
        return None
    Submission.objects.create(
        id=submission_id,
        thread=thread,
        queue_sequence=thread.next_queue_sequence,
        principal=proposal.principal,
        idempotency_key=proposal.key,
        agent=proposal.agent,
        input=proposal.input,
        input_digest=proposal.digest,
        state=State.READY,
        created_at=now,
    )
    Thread.objects.filter(pk=thread.pk).update(next_queue_sequence=thread.next_queue_sequence + 1)
    return thread.next_queue_sequence


def _refuse_or_make_thread(proposal: _Proposal, now: datetime) -> None:
    """Under the lock: says why the submission was not written, or makes the thread that it needs."""
    depth, found = _look_up(proposal)
    if found is not None:
        raise _AlreadyAdmitted(found)
    _check_depth(depth)
    Thread.objects.create(thread_id=proposal.thread_id, created_at=now)
    created = NewRecord(
        records.thread_created_id(proposal.thread_id), ThreadCreated(thread=proposal.thread_id, agent=proposal.agent)
    )
    log.append(proposal.thread_id, Batch(created.record_id, [created]), tail=EMPTY, producer=log.this_process(), at=now)


def _depth(thread_id: str) -> int:
    return Submission.objects.filter(thread_id=thread_id).exclude(state=State.SETTLED).count()


def _replayed(proposal: _Proposal, found: _Found) -> Receipt:
    """The receipt of a key that is taken. Raises `AdmissionConflict` if it stands for something else."""
    if (found.agent, found.digest) != (proposal.agent, proposal.digest):
        raise AdmissionConflict(
            thread_id=proposal.thread_id,
            principal=proposal.principal,
            key=proposal.key,
            existing=f"{found.agent!r} with input {found.digest[:12]}…",
            attempted=f"{proposal.agent!r} with input {proposal.digest[:12]}…",
        )
    return Receipt(
        receipt_id=records.receipt_id(found.submission_id),
        submission_id=found.submission_id,
        thread_id=proposal.thread_id,
        agent=found.agent,
        queue_sequence=found.queue_sequence,
        replayed=True,
    )
