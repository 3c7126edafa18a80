"""The sweep: finds slots that are due or near and whose hint is missing or stale, and hands them over.

Cost proportional to what is due: the partial index of armed slots is read in order of deadline up to the horizon.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

import structlog
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from maintenance import clock, dispatch, failpoints, hotpath, metrics, spans
from maintenance.conf import get_settings
from maintenance.models import ThreadMaintenance

log = structlog.get_logger("wakeful.maintenance")

_TABLE = ThreadMaintenance._meta.db_table  # noqa: SLF001

# The clock is compared inside a scalar sub-select: a bare volatile function would defeat the index.
_CLAIM = f"""
    WITH due AS (
        SELECT thread_id FROM {_TABLE}
         WHERE alarm_at IS NOT NULL AND paused_at IS NULL AND quarantined_at IS NULL
           AND alarm_at <= (SELECT {{clock}} + %(horizon)s)
           AND (lease_expires_at IS NULL OR lease_expires_at <= (SELECT {{clock}}))
           AND (hint_seq IS DISTINCT FROM alarm_seq
                OR (hint_at < alarm_at AND alarm_at <= (SELECT {{clock}} - %(interval)s))
                OR (alarm_at <= (SELECT {{clock}} - %(grace)s)
                    AND hint_at + %(grace)s * power(2, LEAST(GREATEST(hint_attempts - 1, 0), %(doublings)s))
                        <= (SELECT {{clock}})))
         ORDER BY alarm_at LIMIT %(batch)s
           FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE {_TABLE} AS t
       SET hint_attempts = CASE WHEN t.hint_seq = t.alarm_seq THEN t.hint_attempts + 1 ELSE 1 END,
           hint_seq = t.alarm_seq,
           hint_at = {{clock}}
      FROM due
     WHERE t.thread_id = due.thread_id
    RETURNING t.thread_id, t.alarm_seq, t.alarm_at, t.hint_at
"""  # noqa: S608 - identifiers of our own model


@dataclass(frozen=True, slots=True)
class Claimed:
    """A slot that this sweep marked as handed over."""

    thread_id: str
    seq: int
    due_at: datetime
    now: datetime


def sweep(limit: int | None = None) -> int:
    """Hands over at most one batch; the number of hints that the broker took.

    The first hint that is refused ends the batch, and the rest is unmarked: a dead broker is not tried 500 times.
    """
    claimed = claim(min(limit or get_settings().sweep_batch, get_settings().sweep_batch))
    if not claimed:
        return 0
    failpoints.hit("sweep:claimed")
    with spans.span("maintenance.sweep", claimed=len(claimed)) as span:
        published = _publish(claimed)
        span.note(published=published)
    metrics.swept.inc(published)
    if published:
        log.info("sweep.published", count=published)
    return published


def _publish(claimed: list[Claimed]) -> int:
    for position, slot in enumerate(claimed):
        if not dispatch.publish(_hint(slot)):
            for unsent in claimed[position:]:
                dispatch.forget(_hint(unsent))
            return position
        failpoints.hit("sweep:published", slot.thread_id)
    return len(claimed)


def claim(batch: int) -> list[Claimed]:
    """Marks the slots to be handed over, earliest first, and returns them. Two sweeps never claim the same one."""
    claimed = _claim_fused(batch) if hotpath.serves() else _claim_plain(batch)
    return sorted(claimed, key=lambda slot: slot.due_at)


def _claim_fused(batch: int) -> list[Claimed]:
    now_sql, now_params = clock.expression()
    settings = get_settings()
    params: dict[str, Any] = {
        "horizon": settings.dispatch_horizon,
        "interval": settings.sweep_interval,
        "grace": settings.sweep_grace,
        "doublings": settings.sweep_grace_doublings,
        "batch": batch,
    }
    if now_params:
        now_sql, params["now"] = "%(now)s::timestamptz", now_params[0]
    with connection.cursor() as cursor:
        # One statement is its own transaction. Race closed: two sweeps over one row; the second skips it.
        cursor.execute(_CLAIM.format(clock=now_sql), params)
        return [Claimed(*row) for row in cursor.fetchall()]


def _claim_plain(batch: int) -> list[Claimed]:
    now = clock.now()
    if not _candidates(now).exists():
        return []
    # Race closed: two sweeps over one row; the write transaction lets one in at a time and the second finds it marked.
    with transaction.atomic():
        rows = list(_candidates(now).select_for_update(skip_locked=True, no_key=True)[:batch])
        for row in rows:
            row.hint_attempts = row.hint_attempts + 1 if row.hint_seq == row.alarm_seq else 1
            row.hint_seq, row.hint_at = row.alarm_seq, now
        ThreadMaintenance.objects.bulk_update(rows, ["hint_attempts", "hint_seq", "hint_at"])
    return [Claimed(row.thread_id, row.alarm_seq, row.alarm_at, now) for row in rows if row.alarm_at is not None]


def _candidates(now: datetime) -> QuerySet[ThreadMaintenance]:
    settings = get_settings()
    never = ~Q(hint_seq=F("alarm_seq")) | Q(hint_seq__isnull=True)
    with_eta_but_overdue = Q(hint_at__lt=F("alarm_at"), alarm_at__lte=now - settings.sweep_interval)
    stale = Q(alarm_at__lte=now - settings.sweep_grace) & _grace_is_over(now)
    return (
        ThreadMaintenance.objects.filter(paused_at__isnull=True, quarantined_at__isnull=True)
        .filter(alarm_at__lte=now + settings.dispatch_horizon)
        .filter(Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now))
        .filter(never | with_eta_but_overdue | stale)
        .order_by("alarm_at")
    )


def _grace_is_over(now: datetime) -> Q:
    """The grace doubles with each hand-over, so it differs from row to row: one term for each length it can have.

    In the database, because any number of slots in their grace may stand before one that wants its hint.
    """
    settings = get_settings()
    last = settings.sweep_grace_doublings
    lengths = [
        Q(hint_at__lte=now - settings.sweep_grace * 2**doubled) & _was_doubled(doubled, last=last)
        for doubled in range(last + 1)
    ]
    over: Q = reduce(or_, lengths)
    return over


def _was_doubled(times: int, *, last: int) -> Q:
    lowest, highest = Q(hint_attempts__gte=times + 1), Q(hint_attempts__lte=times + 1)
    return (lowest if times else Q()) & (highest if times < last else Q())


def _hint(slot: Claimed) -> dispatch.Hint:
    return dispatch.hint_for(slot.thread_id, slot.seq, slot.due_at, slot.now, trigger="sweep")
