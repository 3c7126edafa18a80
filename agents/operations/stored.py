"""The rows of one thread that its log can contradict, read before the log.

`still` is where the log ended before that: a row about which the log says more beyond it was changed while we looked,
and is not compared. So it does not matter that rows are read one page after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Max, Q, QuerySet

from agents import approvals, tools
from agents.canonical import Json
from agents.models import AbortIntent, Approval, Event, Submission, ToolCall
from agents.states import State

CHUNK = 200
"""Rows with arguments that are held at a time."""


@dataclass(frozen=True, slots=True)
class Row:
    """A submission's row, as far as the log can contradict it."""

    submission_id: str
    queue_sequence: int
    state: str
    outcome: str
    first_sequence: int | None
    waits_for: str
    waits_on: str
    host: str
    """The submission whose run it joined, if any."""
    attempts: int
    stored_attempts: int
    last_attempt: int
    open_attempts: int

    @property
    def is_settled(self) -> bool:
        return self.state == State.SETTLED


@dataclass(frozen=True, slots=True)
class CallRow:
    """A tool call's row."""

    submission_id: str
    turn: int
    call: str
    tool: str
    kind: str
    tries: int
    status: str
    digest: str
    """Computed from what the row holds."""


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """An approval's row."""

    submission_id: str
    name: str
    decision: str
    decided_by: str
    digest: str
    computed: str
    """The digest of what the row holds."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event that a run has taken."""

    name: str
    key: str
    taken_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """All of them."""

    still: int
    rows: list[Row]
    calls: list[CallRow]
    approvals: list[ApprovalRow]
    events: list[EventRow]
    aborts: dict[str, str]
    """Authors of abort intents, by submission."""


def read(thread_id: str, still: int) -> Stored:
    """Reads the rows; memory grows with their number, not with what they carry."""
    return Stored(
        still=still,
        rows=_rows(thread_id),
        calls=list(_calls(thread_id)),
        approvals=list(_approvals(thread_id)),
        events=[
            EventRow(name, key, str(taken_by))
            for name, key, taken_by in Event.objects.filter(thread_id=thread_id, taken_by__isnull=False)
            .order_by("pk")
            .values_list("name", "key", "taken_by")
        ],
        aborts={
            str(pk): author
            for pk, author in AbortIntent.objects.filter(submission__thread_id=thread_id).values_list("pk", "author")
        },
    )


def _rows(thread_id: str) -> list[Row]:
    """Submissions with their attempts counted in the same statement: a claim between two would look like a fault."""
    found = (
        Submission.objects.filter(thread_id=thread_id)
        .annotate(
            stored=Count("attempt_rows"),
            last=Max("attempt_rows__number"),
            unended=Count("attempt_rows", filter=Q(attempt_rows__ending="")),
        )
        .order_by("queue_sequence")
        .values_list(
            "id",
            "queue_sequence",
            "state",
            "outcome",
            "first_sequence",
            "waits_for",
            "waits_on",
            "host_id",
            "attempts",
            "stored",
            "last",
            "unended",
        )
    )
    return [
        Row(
            submission_id=str(pk),
            queue_sequence=place,
            state=state,
            outcome=outcome,
            first_sequence=first,
            waits_for=waits_for,
            waits_on=waits_on,
            host=_text(host),
            attempts=attempts,
            stored_attempts=count,
            last_attempt=last or 0,
            open_attempts=unended,
        )
        for pk, place, state, outcome, first, waits_for, waits_on, host, attempts, count, last, unended in found
    ]


def _text(key: UUID | None) -> str:
    return "" if key is None else str(key)


def _calls(thread_id: str) -> Iterator[CallRow]:
    rows = ToolCall.objects.filter(submission__thread_id=thread_id)
    columns = ("submission_id", "turn", "call", "tool", "kind", "tries", "status", "arguments")
    for pk, turn, call, tool, kind, tries, status, arguments in _paged(rows, *columns):
        yield CallRow(str(pk), turn, call, tool, kind, tries, status, tools.digest_of(tool, Json(arguments)))


def _approvals(thread_id: str) -> Iterator[ApprovalRow]:
    rows = Approval.objects.filter(submission__thread_id=thread_id)
    columns = ("submission_id", "name", "decision", "decided_by", "digest", "tool", "arguments")
    for pk, name, decision, decided_by, digest, tool, arguments in _paged(rows, *columns):
        yield ApprovalRow(str(pk), name, decision, decided_by, digest, approvals.digest_of(tool, Json(arguments)))


def _paged(rows: QuerySet[Any], *columns: str) -> Iterator[list[Any]]:
    """Each row's columns, by key, a page in each statement: an open cursor would be lost behind a pooler."""
    last = None
    while True:
        rest = rows if last is None else rows.filter(pk__gt=last)
        page = list(rest.order_by("pk").values_list("pk", *columns)[:CHUNK])
        for last, *values in page:  # noqa: B007 - the key from which the next page goes on
            yield values
        if len(page) < CHUNK:
            return
