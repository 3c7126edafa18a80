"""Work for the process tests: jobs of a thread, done one per pass, and ports through which a test can kill.

Every job ends in exactly one `Outcome`, written under the fence: a second row would show a broken one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import ClassVar

from django.db import models, transaction

from maintenance import clock, dispatch
from maintenance.errors import SET_ALARM
from maintenance.gate import mutation
from maintenance.ports import InertPublication, RecoveryReport, Residue, Work
from maintenance.rearm import earliest
from maintenance.rows import insert, lock
from tests.process.entry import board

UNTIL_DRAINED = "until-drained"
"""Order for `body`: work in small steps until the worker is told to stop, then yield."""
BLOCKED = "blocked"
"""Order for `body`: sleep in foreign code, then compute without a pause."""
SHORT_WORK = "short-work"
"""Order for `body`: 50 ms of work."""


class Job(models.Model):
    """One piece of work of a thread."""

    thread_id = models.CharField(max_length=255, db_index=True)
    not_before = models.DateTimeField(null=True)
    done = models.BooleanField(default=False)

    objects: ClassVar[models.Manager[Job]] = models.Manager()

    class Meta:
        app_label = "process_tests"

    def __str__(self) -> str:
        return f"job {self.pk} of {self.thread_id}"


class Outcome(models.Model):
    """What came of a job; nothing but the fence keeps a second one from being written."""

    job_id = models.BigIntegerField()
    epoch = models.BigIntegerField()

    objects: ClassVar[models.Manager[Outcome]] = models.Manager()

    class Meta:
        app_label = "process_tests"

    def __str__(self) -> str:
        return f"outcome of job {self.job_id}"


MODELS: tuple[type[models.Model], ...] = (Job, Outcome)


def submit(thread_id: str, *, wake: bool = True, not_before: datetime | None = None) -> int:
    """Accepts one job through the gate; its id."""
    with mutation(thread_id, wake=wake):
        job_id: int = Job.objects.create(thread_id=thread_id, not_before=not_before).pk
    return job_id


def accept_for(thread_id: str, at: datetime) -> None:
    """Accepts one job of a new thread whose slot lies ahead, and hands the slot to the broker if it is near."""
    # Race closed: a worker that takes the message before the row is there would find an unknown thread.
    with transaction.atomic():
        Job.objects.create(thread_id=thread_id)
        insert(thread_id, dirty=1, delay=at - clock.now())
        mark_and_hint(thread_id)


def mark_and_hint(thread_id: str) -> None:
    """Hands the slot over as every transaction does that moved it."""
    locked = lock(thread_id, SET_ALARM)
    assert locked is not None
    hint = dispatch.mark(locked)
    locked.save()
    dispatch.after_commit(hint)


class JobRuntime:
    """Does the oldest job that may start. Notes `body` before it begins, `done` when its outcome is committed."""

    inert = False
    commits_before_user_code = False
    begin_head = None

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        board().reach("recovery", work.thread_id)
        return ()

    def process_head(self, work: Work) -> int:
        job = _claimable(work.thread_id, clock.now()).order_by("pk").first()
        if job is None:
            return 0
        board().note("body", thread=work.thread_id, job=job.pk, epoch=work.epoch)
        if not _worked(work, board().reach("body", work.thread_id)):
            return 0
        with work.fenced(progress=True):
            Outcome.objects.create(job_id=job.pk, epoch=work.epoch)
            Job.objects.filter(pk=job.pk).update(done=True)
        board().note("done", thread=work.thread_id, job=job.pk, epoch=work.epoch)
        return 1


def _worked(work: Work, order: str) -> bool:
    """Does the work of a body; `False` if it yielded before its end."""
    match order:
        case "until-drained":
            while not work.should_yield():
                time.sleep(0.01)
            return False
        case "blocked":
            time.sleep(1.5)
            board().order("spin", "spin", work.thread_id)
            board().reach("spin", work.thread_id)
        case "short-work":
            time.sleep(0.05)
    return True


class JobLedger:
    """What is left of a thread's jobs."""

    inert = False

    def thread_exists(self, thread_id: str) -> bool:
        return Job.objects.filter(thread_id=thread_id).exists()

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        board().reach("scan", thread_id)
        left = Job.objects.filter(thread_id=thread_id, done=False)
        now = clock.now()
        claimable = _claimable(thread_id, now).exists()
        waits = left.filter(not_before__gt=now).values_list("not_before", flat=True)
        return Residue(
            nonterminal=left.count(), autonomous=claimable, claimable_head=claimable, next_due=earliest(*waits)
        )


def _claimable(thread_id: str, now: datetime) -> models.QuerySet[Job]:
    may_start = models.Q(not_before__isnull=True) | models.Q(not_before__lte=now)
    return Job.objects.filter(may_start, thread_id=thread_id, done=False)


class Sink(InertPublication):
    """A sink that wants every generation."""

    inert = False
    wants_generation = True

    def prepare_generation(self, work: Work, generation: int) -> None:
        board().note("prepared", thread=work.thread_id, generation=generation)
        board().reach("prepare", work.thread_id)

    def drain(self, work: Work | None, thread_id: str) -> None:
        board().reach("drain", thread_id)


class Backlog:
    """A projection and an outbox, each with something due while the thread has a job left."""

    inert = False
    point = ""

    def pending_deadline(self, thread_id: str) -> datetime | None:
        left = Job.objects.filter(thread_id=thread_id, done=False)
        return clock.now() if left.exists() else None

    def pending_threads(self, limit: int) -> Iterable[str]:
        return ()


class Index(Backlog):
    """The projection."""

    def drain_due(self, work: Work) -> bool:
        return bool(board().reach("backfill", work.thread_id))


class Outbox(Backlog):
    """The outbox."""

    def drain(self, work: Work) -> None:
        board().reach("wave", work.thread_id)
