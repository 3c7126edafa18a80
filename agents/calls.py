"""How the tool calls of submissions stand: which are open, which unknown ones nobody has answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from django.db.models import Exists, OuterRef

from agents.models import CallStatus, ToolCall, UnknownResolution
from agents.tools import RERUNNABLE


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
