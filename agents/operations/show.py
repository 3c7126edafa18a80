"""What a thread looks like to a person or a script: its queue, its log, what it owes. Read-only, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agents import canonical, log
from agents.admission import Receipt
from agents.models import Submission
from agents.naming import check_thread_id
from agents.operations.authorize import Actor, Operation, authorize, may
from agents.operations.verify import Report
from agents.states import State

MAX_LISTED = 50
"""Submissions that are listed; open ones first."""

Shown = dict[str, Any]


def show(thread_id: str, *, last: int = 20, actor: Actor = None) -> Shown:
    """One thread as plain JSON: its queue and the `last` records of its log.

    Whoever may not observe gets digest and size of a payload in its place. Raises `OperationDenied`, `UnknownThread`.
    """
    authorize(actor, Operation.SHOW, thread_id=thread_id)
    check_thread_id(thread_id)
    shown = _with_payload if may(actor, Operation.OBSERVE, thread_id=thread_id) else _without_payload
    tail = log.tail_of(thread_id)
    rows = Submission.objects.filter(thread_id=thread_id)
    open_rows = rows.exclude(state=State.SETTLED)
    return {
        "thread": thread_id,
        "records": tail.sequence,
        "digest": tail.digest,
        "owed": open_rows.count(),
        "submissions": [_submission(row) for row in _listed(thread_id)],
        "log": [{**_record(record), **shown(record)} for record in _last(thread_id, tail.sequence, last)],
    }


def receipt(given: Receipt) -> Shown:
    """A receipt as plain JSON."""
    return {
        "thread": given.thread_id,
        "submission": str(given.submission_id),
        "receipt": given.receipt_id,
        "queue_sequence": given.queue_sequence,
        "replayed": given.replayed,
    }


def report(verified: Report) -> Shown:
    """The result of `verify` as plain JSON."""
    return {
        "thread": verified.thread_id,
        "ok": verified.ok,
        "records": verified.records,
        "submissions": verified.submissions,
        "checks": [{"name": check.name, "status": check.status, "detail": check.detail} for check in verified.checks],
    }


def as_lines(shown: Shown) -> Iterator[str]:
    """The same for people."""
    yield f"thread {shown['thread']}: {shown['records']} records, {shown['owed']} submissions owed"
    for row in shown["submissions"]:
        state = row["outcome"] or row["state"]
        yield f"  #{row['queue_sequence']} {row['agent']} {state}, attempts {row['attempts']} ({row['submission']})"
    for record in shown["log"]:
        yield f"  {record['sequence']:>6} {record['at']} {record['family']} {record['id']}"


def _listed(thread_id: str) -> list[Submission]:
    rows = Submission.objects.filter(thread_id=thread_id).defer("input")
    owed = list(rows.exclude(state=State.SETTLED).order_by("queue_sequence")[:MAX_LISTED])
    settled = rows.filter(state=State.SETTLED).order_by("-queue_sequence")[: MAX_LISTED - len(owed)]
    return [*reversed(settled), *owed]


def _submission(row: Submission) -> Shown:
    return {
        "submission": str(row.pk),
        "queue_sequence": row.queue_sequence,
        "agent": row.agent,
        "state": row.state,
        "outcome": row.outcome,
        "attempts": row.attempts,
        "created_at": row.created_at.isoformat(),
        "settled_at": row.settled_at.isoformat() if row.settled_at else None,
    }


def _last(thread_id: str, tail: int, count: int) -> list[log.Record]:
    return log.read(thread_id, after=max(0, tail - count), limit=count) if count > 0 else []


def _record(record: log.Record) -> Shown:
    return {
        "sequence": record.sequence,
        "at": record.at,
        "family": record.family,
        "id": record.record_id,
    }


def _with_payload(record: log.Record) -> Shown:
    return {"payload": record.payload}


def _without_payload(record: log.Record) -> Shown:
    """Enough to see whether it is what somebody claims, and no more."""
    text = canonical.encode(record.payload)
    return {"payload_digest": canonical.digest(text), "payload_bytes": canonical.size(text)}
