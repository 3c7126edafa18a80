"""What must hold at every commit: A1 to A5 and P1 of the design, read from the tables alone.

`violations` never trusts the code under test: it compares what the ledger holds with what the row promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from uuid import UUID

from maintenance import clock
from maintenance.conf import get_settings
from maintenance.history import ACTIONABLE, CAUGHT_UP
from maintenance.models import PassRun, ThreadMaintenance
from tests.model import ledger
from tests.model.ledger import Cursor, Job, Letter, Record


@dataclass
class Watched:
    """What a check remembers of a thread from one look to the next."""

    thread_id: str
    certified: set[int] = field(default_factory=set)
    """Generations that an earlier state had acknowledged."""
    processed: int = 0
    ports: bool = False
    """An outbox and a sink are installed: letters are to be sent, settlements to be published."""


@dataclass
class Seen:
    """What the tables hold of a thread at one moment."""

    row: ThreadMaintenance | None
    jobs: list[Job]
    runs: list[PassRun]
    records: list[Record]
    now: datetime

    def shape(self) -> str:
        """All of it but names that are new in each run: tokens, keys. Equal shapes have the same future."""
        row = None if self.row is None else [_shown(getattr(self.row, name)) for name in _COLUMNS]
        jobs = [(job.state, job.due_at, job.asks, job.answered) for job in self.jobs]
        runs = [(run.epoch, run.outcome, run.phase, run.generation) for run in self.runs]
        return repr((row, jobs, runs, [record.epoch for record in self.records]))


_COLUMNS = [column.attname for column in ThreadMaintenance._meta.concrete_fields]


def _shown(value: object) -> object:
    return "a token" if isinstance(value, UUID) else value


def look(thread_id: str) -> Seen:
    """Reads the tables."""
    return Seen(
        row=ThreadMaintenance.objects.filter(pk=thread_id).first(),
        jobs=list(Job.objects.filter(thread_id=thread_id).order_by("pk")),
        runs=list(PassRun.objects.filter(thread_id=thread_id).order_by("pk")),
        records=list(Record.objects.filter(thread_id=thread_id).order_by("pk")),
        now=clock.now(),
    )


def violations(watched: Watched, seen: Seen | None = None) -> list[str]:
    """Every broken invariant of the thread, in words; empty if all hold."""
    seen = seen or look(watched.thread_id)
    row, jobs, now = seen.row, seen.jobs, seen.now
    if row is None:
        return [f"A1: {len(jobs)} jobs are committed and the thread has no row"] if jobs else []
    found = [
        *_generations(row, seen.runs, watched),
        *_owed_work(row, jobs, now),
        *_slot(row, now),
        *_ends(row, seen.runs),
        *_owners(seen.records),
        *_settlements(jobs, seen.records),
        *_deadlines(row, watched),
    ]
    watched.processed = row.processed
    return found


def _generations(row: ThreadMaintenance, runs: list[PassRun], watched: Watched) -> Iterator[str]:
    certified = {run.generation for run in runs if run.outcome == "ran" and run.phase == ACTIONABLE}
    if row.processed > row.dirty:
        yield f"A3: processed {row.processed} is beyond dirty {row.dirty}"
    if row.processed < watched.processed:
        yield f"A3: processed went back from {watched.processed} to {row.processed}"
    if row.processed not in certified | watched.certified | {0}:
        yield f"A3: {row.processed} is acknowledged, no pass certified it; certified: {certified}"
    if row.is_dirty and row.alarm_at is None:
        yield "A1: the row is dirty and has no alarm"


def _owed_work(row: ThreadMaintenance, jobs: list[Job], now: datetime) -> Iterator[str]:
    """Work that a pass could do is announced by a newer generation, or by a timer that will announce it."""
    for job in jobs:
        timed = row.timer_at is not None and row.timer_at <= max(now, job.due_at or now)
        if job.can_go_on(now) and not (row.is_dirty or timed):
            yield f"A1: job {job.pk} ({job.state}) can go on, the row is clean and no timer stands"
        if job.state == ledger.READY and job.due_at and job.due_at > now and not (row.is_dirty or timed):
            yield f"A1: job {job.pk} is due in {job.due_at - now} and no timer stands for it"


def _slot(row: ThreadMaintenance, now: datetime) -> Iterator[str]:
    settings = get_settings()
    if row.is_dirty and row.alarm_at is not None and row.alarm_at > now + settings.failure_backoff_cap:
        yield f"A2: a dirty row looks again only in {row.alarm_at - now}"
    if row.timer_at is None:
        return
    if row.alarm_at is None:
        yield "A2: a timer stands and there is no slot"
    elif row.alarm_at > max(row.timer_at, now + settings.minimum) and not row.is_dirty:
        yield f"A2: the slot is {row.alarm_at - row.timer_at} behind the timer"


def _ends(row: ThreadMaintenance, runs: list[PassRun]) -> Iterator[str]:
    """A pass has one end. (A caught-up pass that takes no lease has no epoch of its own.)"""
    epochs = sorted(run.epoch for run in runs if (run.outcome, run.phase) != ("ran", CAUGHT_UP))
    for epoch, found in groupby(epochs):
        if (count := len(list(found))) > 1:
            yield f"A5: the pass of epoch {epoch} has {count} ends"
    if epochs and epochs[-1] > row.lease_epoch:
        yield f"A5: a pass of epoch {epochs[-1]} ended, the row only knows {row.lease_epoch}"


def _owners(records: list[Record]) -> Iterator[str]:
    """Whoever lost the thread writes no more: the records of one lease lie together."""
    writers = [token for token, _ in groupby(record.token for record in records)]
    if len(writers) != len(set(writers)):
        yield "A5: a pass wrote after another one had taken over"


def _settlements(jobs: list[Job], records: list[Record]) -> Iterator[str]:
    recorded = sorted(record.job_id for record in records if record.kind == ledger.SETTLED and record.job_id)
    done = sorted(job.pk for job in jobs if job.state == ledger.DONE)
    if recorded != done:
        yield f"L1: jobs {done} are done, settlements are recorded for {recorded}"


def _deadlines(row: ThreadMaintenance, watched: Watched) -> Iterator[str]:
    """What a port still owes keeps a slot."""
    if row.alarm_at is not None or not watched.ports:
        return
    if letters := Letter.objects.filter(thread_id=row.thread_id, sent=False).count():
        yield f"A2: {letters} letters are not sent and no pass is due"
    cursor = Cursor.objects.filter(thread_id=row.thread_id).first()
    if behind := ledger.settlements(row.thread_id, after=cursor.position if cursor else 0).count():
        yield f"P1: {behind} settlements are not published and no pass is due"


def untold(seen: Seen) -> list[str]:
    """Whether a slot that can be acted on was handed over to nobody. For schedules in which no time goes by."""
    row = seen.row
    if row is None or row.alarm_at is None or row.has_live_lease(seen.now) or row.hint_seq == row.alarm_seq:
        return []
    return [f"the slot {row.alarm_seq} lies open and only {row.hint_seq} was handed over"]


def at_rest(seen: Seen) -> list[str]:
    """What keeps the thread from rest: after a calm time it is caught up, unarmed, and all that can be done is."""
    row = seen.row
    if row is None:
        return []
    found = [f"job {job.pk} ({job.state}) is left" for job in seen.jobs if _should_be_done(job)]
    if row.is_dirty:
        found.append(f"the row is dirty: {row.dirty} > {row.processed}")
    if row.alarm_at is not None:
        found.append(f"the row is armed at {row.alarm_at}")
    if row.has_live_lease(seen.now):
        found.append("a lease lives")
    return found


def _should_be_done(job: Job) -> bool:
    return job.state == ledger.READY or (job.state == ledger.WAITING and job.answered)
