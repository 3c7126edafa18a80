"""The tables that stand on several pages: attempts, calls, questions, submissions, records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.db.models import CharField, F, QuerySet
from django.db.models.functions import Substr
from django.http import HttpRequest
from django.utils.safestring import SafeString

from agents.admin import links
from agents.admin.inspecting import Cell, InspectedAdmin, Section
from agents.models import Approval, Attempt, LogRecord, Submission, ToolCall
from agents.moments import parsed
from maintenance.admin.display import moment, owner_words, state
from maintenance.wording import spoken_precisely

RECENT = 10
"""Rows of a table on a page; a link leads to all of them."""
MOST_OPEN = 50
"""Rows of a table of what is owed."""
LOGGED = 20
"""Records of the log on a page."""

AT = Substr("text", 8, 24, output_field=CharField())
"""The moment in a stored record, which begins with it: its text is not read for that."""


def appended(at_text: str, now: datetime, shown: Callable[..., SafeString | str] = moment) -> SafeString | str:
    """When a record was appended; the text as it is if it does not hold a moment."""
    try:
        return shown(parsed(at_text), now)
    except ValueError:
        return at_text


def standing(row: Submission) -> SafeString:
    """A submission's outcome, or its state with what it waits for."""
    return state(row.outcome or row.state)


def running(attempt: Attempt) -> SafeString:
    """How an attempt ended."""
    return state(attempt.ending or "not_ended")


def submissions(rows: Iterable[Submission], said: dict[Any, str], now: datetime, **words: Any) -> Section:
    """Unsettled submissions, each with its sentence."""
    cells = [
        (
            row.queue_sequence,
            links.to(row, row.agent),
            standing(row),
            said.get(row.pk, ""),
            moment(row.created_at, now),
        )
        for row in rows
    ]
    return Section(columns=("#", "Agent", "State", "Why it does not move", "Accepted"), rows=cells, **words)


def settled(rows: Iterable[Submission], now: datetime, **words: Any) -> Section:
    """Submissions that have come to their end."""
    cells = [
        (row.queue_sequence, links.to(row, row.agent), standing(row), row.attempts, moment(row.settled_at, now))
        for row in rows
    ]
    return Section(columns=("#", "Agent", "Outcome", "Attempts", "Settled"), rows=cells, **words)


def attempts(rows: Iterable[Attempt], now: datetime, **words: Any) -> Section:
    """Who tried to advance a submission, and how that ended."""
    cells: list[tuple[Cell, ...]] = [
        (
            links.to(row, row.number),
            running(row),
            moment(row.started_at, now),
            "" if row.ended_at is None else spoken_precisely(row.ended_at - row.started_at),
            row.epoch,
            owner_words(row.owner),
        )
        for row in rows
    ]
    return Section(columns=("#", "Ending", "Started", "Took", "Epoch", "Process"), rows=cells, **words)


class Beside:
    """Builds the tables that offer actions, for one request on one page."""

    def __init__(self, page: InspectedAdmin, request: HttpRequest, now: datetime) -> None:
        self._page, self._request, self._now = page, request, now

    def calls(self, rows: QuerySet[ToolCall], **words: Any) -> Section:
        """Tool calls, with what can be said about unknown ones."""
        found = rows.select_related("submission").defer("arguments", "submission__input")
        cells: list[tuple[Cell, ...]] = [
            (
                links.to(row, row.call),
                row.tool,
                row.kind,
                state(row.status),
                row.tries,
                row.unknown_reason,
                moment(row.updated_at, self._now),
                self._page.act_links(self._request, row),
            )
            for row in found
        ]
        columns = ("Call", "Tool", "Kind", "Status", "Tries", "Why unknown", "Since", "")
        return Section(columns=columns, rows=cells, **words)

    def approvals(self, rows: QuerySet[Approval], **words: Any) -> Section:
        """Questions to people, with the ways to answer them."""
        found = rows.select_related("submission").defer("arguments", "submission__input")
        cells: list[tuple[Cell, ...]] = [
            (
                links.to(row, row.name),
                row.tool,
                state(row.decision or "undecided"),
                row.decided_by,
                moment(row.requested_at, self._now),
                moment(row.expires_at, self._now, promised=row.decision == ""),
                self._page.act_links(self._request, row),
            )
            for row in found
        ]
        columns = ("Question", "Tool", "Decision", "By", "Asked", "Expires", "")
        return Section(columns=columns, rows=cells, **words)

    def records(self, rows: QuerySet[LogRecord], **words: Any) -> Section:
        """A piece of the log; no payload."""
        found = rows.annotate(at_text=AT).values_list("pk", "sequence", "family", "record_id", F("at_text"))
        cells: list[tuple[Cell, ...]] = [
            (links.to_page(LogRecord, pk, sequence), family, record_id, appended(at_text, self._now))
            for pk, sequence, family, record_id, at_text in found
        ]
        return Section(columns=("#", "Family", "Record", "Appended"), rows=cells, **words)
