"""The history of passes, and the report that the row keeps of the last one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import structlog

from maintenance import hooks, metrics, owner, spans
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.rows import Locked

log = structlog.get_logger("wakeful.maintenance")

STILL_DUE = "still_due"
"""Key beside the report on the row: at the end of so many passes in a row a deadline of a port was still due."""
STUCK_AFTER = 20
"""So many passes in a row: the port moves its deadline on no more, or its backlog grows faster than it is served."""

REARMED = "rearmed"
CLEARED = "cleared"
CAUGHT_UP = "caught-up"
ACTIONABLE = "actionable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one pass did. `recovered` counts reports, also deferred ones; `nonterminal` what is left unsettled."""

    phase: str
    """`caught-up`: no canonical work ran. `actionable`: recovery and the head had their turn."""
    recovered: int
    settled: int
    nonterminal: int
    alarm: str
    """`rearmed` or `cleared`."""


def record(
    locked: Locked,
    *,
    outcome: str,
    trigger: str,
    due_at: datetime | None,
    generation: int | None,
    report: Report | None = None,
    error: str = "",
    still_due: bool = False,
) -> None:
    """Notes the end of the pass that the locked row names; it is written with the row.

    `still_due`: a deadline of a port that had come still stands.
    """
    row = locked.row
    row.last_outcome = outcome
    row.last_error = error
    if report is not None:
        row.last_report = asdict(report) | (_counted_on(locked) if still_due else {})
    started = row.lease_started_at or locked.now
    if due_at is not None:
        late = max(0.0, (started - due_at).total_seconds())
        metrics.lateness.observe(late)
        spans.note_on_pass(lateness_ms=round(late * 1_000))
    locked.ended = PassRun(
        thread_id=row.thread_id,
        epoch=row.lease_epoch,
        trigger=trigger,
        outcome=outcome,
        generation=generation,
        due_at=due_at,
        started_at=started,
        finished_at=locked.now,
        owner=row.lease_owner or owner.current(),
        error=error,
        **_counts(report),
    )


def times_still_due(row: ThreadMaintenance) -> int:
    """After how many passes in a row, up to the last one, a deadline of a port was still due."""
    times: int = (row.last_report or {}).get(STILL_DUE, 0)
    return times


def _counted_on(locked: Locked) -> dict[str, Any]:
    """The count with this pass; warns once, when it gets suspicious. On the row: passes in a row are of any worker."""
    times, thread_id = times_still_due(locked.row) + 1, locked.row.thread_id
    if times == STUCK_AFTER:
        metrics.stuck_deadlines.inc()
        log.warning(
            "port.deadline_stuck", thread=thread_id, passes=times, ports=hooks.current().due(thread_id, locked.now)
        )
    return {STILL_DUE: times}


def last_report(row: ThreadMaintenance) -> Report:
    """The report of the pass that finished last; only for a row that has one."""
    kept = row.last_report or {}
    return Report(**{name: value for name, value in kept.items() if name != STILL_DUE})


def note_lost_lease(locked: Locked) -> None:
    """A lease that expired unreleased belongs to a pass that never ended: its end is recorded by whoever sees it."""
    row = locked.row
    if row.lease_token is not None:
        record(
            locked,
            outcome="lease_lost",
            trigger="",
            due_at=None,
            generation=None,
            error="the pass did not end before its lease expired",
        )
        locked.save()


def prune(before: datetime, *, batch: int = 10_000) -> int:
    """Deletes history that ended before the given time, in batches; returns how many rows went."""
    total = 0
    while True:
        doomed = list(PassRun.objects.filter(finished_at__lt=before).values_list("pk", flat=True)[:batch])
        PassRun.objects.filter(pk__in=doomed).delete()
        total += len(doomed)
        if len(doomed) < batch:
            return total


def _counts(report: Report | None) -> dict[str, object]:
    return {} if report is None else asdict(report)
