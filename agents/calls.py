"""How the tool calls of submissions stand: which are open, which unknown ones nobody has answered.

Whoever ends a submission says in its last batch which calls nobody will hear of any more (`audit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.db.models import Exists, OuterRef

from agents import records
from agents.models import CallStatus, ToolCall, UnknownResolution
from agents.records import NewRecord, ToolCallUnknown
from agents.tools import RERUNNABLE
from maintenance import clock
from maintenance.errors import bounded

MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one submission that must not be passed by."""

    open: tuple[str, ...] = ()
    """Prepared, without a result, and not to be run again by itself."""
    unanswered: int = 0
    """Unknown calls without a resolution for their present try."""


def standing(submissions: Sequence[UUID]) -> dict[UUID, Calls]:
    """The open and unknown calls of these submissions; those without any are left out. One statement."""
    resolved = UnknownResolution.objects.filter(tool_call=OuterRef("pk"), tries=OuterRef("tries"))
    rows = ToolCall.objects.filter(
        submission_id__in=submissions, status__in=[CallStatus.PREPARED, CallStatus.UNKNOWN]
    ).annotate(answered=Exists(resolved))
    found: dict[UUID, Calls] = {}
    for row in rows.order_by("pk"):
        known = found.get(row.submission_id, Calls())
        if row.status == CallStatus.UNKNOWN:
            known = replace(known, unanswered=known.unanswered + (not row.answered))
        elif row.kind not in RERUNNABLE:
            known = replace(known, open=(*known.open, row.call))
        found[row.submission_id] = known
    return found


def audit(submission_id: UUID, reason: str) -> tuple[NewRecord, ...]:
    """Marks every open call of a submission that ends as unknown, and gives the records that say so."""
    rows = ToolCall.objects.filter(submission_id=submission_id, status=CallStatus.PREPARED).order_by("pk")
    made = tuple(unknown_record(row, reason) for row in rows)
    if made:
        rows.update(status=CallStatus.UNKNOWN, unknown_reason=bounded(reason, MAX_REASON), updated_at=clock.now())
    return made


def unknown_record(row: ToolCall, reason: str) -> NewRecord:
    """The record that nobody knows what became of this try of a call."""
    payload = ToolCallUnknown(
        run=records.run_id(row.submission_id),
        turn=row.turn,
        call=row.call,
        tries=row.tries,
        tool=row.tool,
        reason=bounded(reason, MAX_REASON),
    )
    return NewRecord(record_id("tool-unknown", row), payload)


def record_id(kind: str, row: ToolCall) -> str:
    """The id of a record about the present try of a call."""
    return records.call_id(kind, records.run_id(row.submission_id), row.turn, row.tries, row.call)
