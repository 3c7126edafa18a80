"""What is owed, what runs, what waits and why: read from the database alone.

Workers and the broker are not asked: a message on its way tells nothing, the row tells everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db.models import Count, F, Max, Min, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest

from maintenance import clock
from maintenance.conf import get_settings
from maintenance.delivery import Outcome
from maintenance.history import STILL_DUE, STUCK_AFTER, times_still_due
from maintenance.models import MutationLease, ThreadMaintenance, WorkerHeartbeat
from maintenance.sweeper import HEARTBEAT_SECONDS
from maintenance.wording import counted, spoken

RUNNABLE = Q(alarm_at__isnull=False, paused_at__isnull=True, quarantined_at__isnull=True)
"""Armed and not held back by a person; the condition of the index of armed slots, word for word."""

# Dirty implies armed, so the second condition costs nothing and lets an index answer.
DIRTY = Q(processed__lt=F("dirty"), alarm_at__isnull=False)
STALLED = Q(stalls__gt=0)
FAILING = Q(failures__gt=0)
PAUSED = Q(paused_at__isnull=False)
PARKED = PAUSED & Q(last_outcome=Outcome.PARKED)
"""Paused by its own pass, or its begin: only a person can mend what hinders it."""
QUARANTINED = Q(quarantined_at__isnull=False)
STUCK = RUNNABLE & Q(**{f"last_report__{STILL_DUE}__gte": STUCK_AFTER})
"""A port's deadline is due again and again, and no pass changes that."""
HANDED_OVER = Q(hint_seq=F("alarm_seq"))

ALIVE = timedelta(seconds=3 * HEARTBEAT_SECONDS)
"""A worker whose heartbeat is older is taken for gone."""


def leased(now: datetime) -> Q:
    """A pass holds the thread."""
    return Q(lease_expires_at__gt=now)


def overdue(now: datetime, by: timedelta) -> Q:
    """Due for longer than `by`, and nothing runs: time under a live lease does not count."""
    free = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lt=now - by)
    return RUNNABLE & Q(alarm_at__lt=now - by) & free


def due(now: datetime) -> Q:
    """A pass could begin at this moment."""
    free = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
    return RUNNABLE & Q(alarm_at__lte=now) & free


def usual_lateness() -> timedelta:
    """What is late beyond this is overdue: each sweep hands over what the one before it may have missed."""
    return get_settings().sweep_interval * 2


class State(StrEnum):
    """What a thread does now."""

    QUARANTINED = "quarantined"
    PAUSED = "paused"
    RUNNING = "running"
    DUE = "due"
    WAITING = "waiting"
    """Armed for later."""
    QUIET = "quiet"
    """Nothing is owed."""


def state_of(row: ThreadMaintenance, now: datetime) -> State:
    """The state of a row: whatever holds it back comes first."""
    if row.quarantined_at is not None:
        return State.QUARANTINED
    if row.paused_at is not None:
        return State.PAUSED
    if row.has_live_lease(now):
        return State.RUNNING
    if row.alarm_at is None:
        return State.QUIET
    return State.DUE if row.alarm_at <= now else State.WAITING


def explain(row: ThreadMaintenance, now: datetime) -> str:
    """One sentence: what the thread does now, or what it waits for, and who has to move."""
    match state_of(row, now):
        case State.QUARANTINED:
            return f"In quarantine ({row.quarantine_reason or 'no reason kept'}): a person has to release it."
        case State.PAUSED:
            return f"{_paused(row)}: its work is kept and goes on after resume."
        case State.RUNNING:
            return f"A pass holds it for at most {spoken(_until(row.lease_expires_at, now))} without a renewal."
        case State.DUE:
            return f"Due: {why_armed(row, now)}; {_handed_over(row, now)}."
        case State.WAITING:
            return f"Due in {spoken(_until(row.alarm_at, now))}: {why_armed(row, now)}."
    return "Nothing is owed: no alarm."


def _paused(row: ThreadMaintenance) -> str:
    """By whom, as far as the row tells; the operator actions tell all."""
    return (
        f"Parked by its last pass ({row.last_error})" if row.last_outcome == Outcome.PARKED else "Paused by an operator"
    )


def why_armed(row: ThreadMaintenance, now: datetime) -> str:
    """Why the slot stands where it stands, as far as the row tells."""
    if not row.is_dirty:
        return _why_armed_when_clean(row)
    owed = f"generation {row.dirty} is not acknowledged (the last one is {row.processed})"
    if row.has_mutation_in_flight(now):
        return f"{owed}, and a pre-armed mutation is in flight"
    if row.failures:
        return f"{owed}; retry after {counted(row.failures, 'failed pass', 'failed passes')} in a row"
    if row.starts_since_finish and not row.has_live_lease(now):
        return f"{owed}; {counted(row.starts_since_finish, 'pass', 'passes')} began and did not end"
    if row.stalls:
        return f"{owed}; {counted(row.stalls, 'pass', 'passes')} in a row made no progress"
    return owed


def _why_armed_when_clean(row: ThreadMaintenance) -> str:
    if row.alarm_at is None:
        return "nothing is owed"
    if row.timer_at is not None and row.timer_at <= row.alarm_at:
        return "a durable timer"
    deadline = "a deadline of publication, projection or messages"
    if times := times_still_due(row):
        return f"{deadline}, still due after {counted(times, 'pass', 'passes')} in a row"
    return f"{deadline}, or a time that was asked for"


def _handed_over(row: ThreadMaintenance, now: datetime) -> str:
    if row.hint_seq != row.alarm_seq or row.hint_at is None:
        return "not handed to the broker yet, the next sweep does that"
    times, ago = counted(row.hint_attempts, "time", "times"), spoken(now - row.hint_at)
    return f"handed over {times}, last {ago} ago, not started: queue {get_settings().queue!r}"


def _until(at: datetime | None, now: datetime) -> timedelta:
    return timedelta() if at is None else at - now


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether due work is being done."""

    threshold: timedelta
    overdue: int = 0
    oldest: timedelta | None = None
    oldest_thread: str = ""
    handed_over: int = 0
    queue: str = ""

    @property
    def ok(self) -> bool:
        return self.overdue == 0

    def sentence(self) -> str:
        """How many, how late, and where they wait."""
        if self.ok or self.oldest is None:
            return f"Nothing is overdue by more than {spoken(self.threshold)}."
        missing = self.overdue - self.handed_over
        late = counted(self.overdue, "thread is", "threads are")
        parts = [f"{late} overdue, the oldest by {spoken(self.oldest)} ({self.oldest_thread})."]
        if self.handed_over:
            parts.append(f"{self.handed_over} handed over, not started: queue {self.queue!r}.")
        if missing:
            parts.append(f"{missing} not handed over: no sweep runs, or the broker does not take messages.")
        return " ".join(parts)


def health(threshold: timedelta | None = None) -> Health:
    """What is overdue by more than `threshold`. Reads the index of armed slots, as far as it is due."""
    now, by = clock.now(), usual_lateness() if threshold is None else threshold
    late = _with_due(ThreadMaintenance.objects.filter(overdue(now, by)))
    found = late.aggregate(count=Count("pk"), oldest=Min("due"), handed_over=Count("pk", filter=HANDED_OVER))
    first = late.order_by("due").values_list("thread_id", flat=True).first()
    if not found["count"] or first is None:
        return Health(threshold=by, queue=get_settings().queue)
    return Health(
        threshold=by,
        overdue=found["count"],
        oldest=now - found["oldest"],
        oldest_thread=first,
        handed_over=found["handed_over"],
        queue=get_settings().queue,
    )


def _with_due(rows: QuerySet[ThreadMaintenance]) -> QuerySet[Any]:
    """Adds the effective due time of rows without a live lease: a dead pass hid its slot until its lease ended."""
    return rows.annotate(due=Greatest("alarm_at", Coalesce("lease_expires_at", "alarm_at")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Counts over all threads; one scan of the table."""

    threads: int
    armed: int
    dirty: int
    due: int
    leased: int
    stalled: int
    failing: int
    paused: int
    quarantined: int
    last_hand_over: datetime | None
    next_due: datetime | None
    """The earliest slot that is still to come."""
    mutations_in_flight: int
    workers: int
    """Workers whose heartbeat is fresh."""
    last_heartbeat: datetime | None


def numbers(now: datetime) -> Numbers:
    """The counts as of `now`."""
    counts = {
        "armed": Q(alarm_at__isnull=False),
        "dirty": DIRTY,
        "due": due(now),
        "leased": leased(now),
        "stalled": STALLED,
        "failing": FAILING,
        "paused": PAUSED,
        "quarantined": QUARANTINED,
    }
    found = ThreadMaintenance.objects.aggregate(
        threads=Count("pk"),
        last_hand_over=Max("hint_at"),
        next_due=Min("alarm_at", filter=RUNNABLE & Q(alarm_at__gt=now)),
        **{name: Count("pk", filter=condition) for name, condition in counts.items()},
    )
    workers = WorkerHeartbeat.objects.aggregate(
        workers=Count("pk", filter=Q(seen_at__gte=now - ALIVE)), last_heartbeat=Max("seen_at")
    )
    in_flight = MutationLease.objects.filter(expires_at__gt=now).count()
    return Numbers(mutations_in_flight=in_flight, **found, **workers)


def facts(row: ThreadMaintenance, now: datetime) -> dict[str, Any]:
    """Everything that the row tells about its thread, for machines."""
    return {
        "thread": row.thread_id,
        "state": state_of(row, now),
        "explanation": explain(row, now),
        "deadline": row.alarm_at,
        "due_in_seconds": None if row.alarm_at is None else (row.alarm_at - now).total_seconds(),
        "reason": why_armed(row, now),
        "seq": row.alarm_seq,
        "timer": row.timer_at,
        "handed_over": {
            "seq": row.hint_seq,
            "at": row.hint_at,
            "attempts": row.hint_attempts,
            "current": row.hint_seq == row.alarm_seq,
        },
        "dirty": row.dirty,
        "processed": row.processed,
        "lag": row.dirty - row.processed,
        "nonterminal": row.nonterminal,
        "lease": _lease(row, now),
        "mutating_until": row.mutating_until if row.has_mutation_in_flight(now) else None,
        "stalls": row.stalls,
        "failures": row.failures,
        "starts_since_finish": row.starts_since_finish,
        "paused_at": row.paused_at,
        "quarantined_at": row.quarantined_at,
        "quarantine_reason": row.quarantine_reason,
        "last_outcome": row.last_outcome,
        "last_report": row.last_report,
        "last_error": row.last_error,
    }


def _lease(row: ThreadMaintenance, now: datetime) -> dict[str, Any] | None:
    if row.lease_expires_at is None:
        return None
    return {
        "owner": row.lease_owner,
        "epoch": row.lease_epoch,
        "started_at": row.lease_started_at,
        "expires_at": row.lease_expires_at,
        "live": row.has_live_lease(now),
    }
