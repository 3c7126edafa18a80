"""A test ledger in real tables: small enough to read at once, and nothing that it accepted may be lost.

A *job* is work that a mutation commits. It is done by a pass, may have to wait until a time (`due_at`), and may ask
for an answer, which a mutation or the message wave brings. *Records* are its canonical log: every write of a pass
appends one, naming the lease that wrote it. A *letter* is an outbox row; a *cursor* says what the sink has published.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, cast

from django.db import connection, models
from django.db.models import Min, Q

from maintenance import clock
from maintenance.hooks import Hooks
from maintenance.lease import Lease
from maintenance.models import MutationLease, OperatorAction, PassRun, ThreadMaintenance
from maintenance.ports import REPAIRED, BeginHead, InertPublication, RecoveryReport, Residue, Work
from maintenance.work import PassWork

READY, WAITING, DONE = "ready", "waiting", "done"
ENTERED, APPENDED, SETTLED = "entered", "appended", "settled"

_ids = itertools.count(1)


class Row(models.Model):
    """A table of the ledger. No app has it: it is made and unmade by `tables`."""

    class Meta:
        abstract = True
        app_label = "tests_model"

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.pk}"


class Job(Row):
    """Accepted work. `waiting` is a stable wait, as long as no answer is there."""

    thread_id = models.CharField(max_length=255)
    state = models.CharField(max_length=10, default=READY)
    due_at = models.DateTimeField(null=True)
    asks = models.BooleanField(default=False)
    answered = models.BooleanField(default=False)

    objects: ClassVar[models.Manager[Job]] = models.Manager()

    def can_go_on(self, now: datetime) -> bool:
        """Whether the next pass can do something for it, with nothing new from outside."""
        if self.state == WAITING:
            return self.answered
        return self.state == READY and (self.due_at is None or self.due_at <= now)


class Record(Row):
    """One write of a pass; its key grows in the order of the writes."""

    thread_id = models.CharField(max_length=255)
    kind = models.CharField(max_length=10)
    job_id = models.BigIntegerField(null=True)
    token = models.UUIDField()
    epoch = models.BigIntegerField()

    objects: ClassVar[models.Manager[Record]] = models.Manager()


class Letter(Row):
    """A message in the outbox; sending it answers a job."""

    thread_id = models.CharField(max_length=255)
    job_id = models.BigIntegerField()
    due_at = models.DateTimeField()
    sent = models.BooleanField(default=False)

    objects: ClassVar[models.Manager[Letter]] = models.Manager()


class Cursor(Row):
    """The last record that the sink has published."""

    thread_id = models.CharField(max_length=255, primary_key=True)
    position = models.BigIntegerField(default=0)

    objects: ClassVar[models.Manager[Cursor]] = models.Manager()


TABLES: tuple[type[models.Model], ...] = (Job, Record, Letter, Cursor)
CLEANED: tuple[type[models.Model], ...] = (*TABLES, ThreadMaintenance, MutationLease, PassRun, OperatorAction)


@contextmanager
def tables() -> Iterator[None]:
    """Makes the tables for the time of the block."""
    with connection.schema_editor() as editor:
        for model in TABLES:
            editor.create_model(model)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            for model in TABLES:
                editor.delete_model(model)


def clean() -> None:
    """Empties the ledger and maintenance."""
    for model in CLEANED:
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(model._meta.db_table)}")


def add_job(
    thread_id: str, *, state: str = READY, due_at: datetime | None = None, asks: bool = False, answered: bool = False
) -> Job:
    """Adds accepted work; the caller is inside a mutation of its thread (or sets up a test)."""
    return Job.objects.create(
        pk=next(_ids), thread_id=thread_id, state=state, due_at=due_at, asks=asks, answered=answered
    )


def append(lease: Lease, kind: str = APPENDED, job_id: int | None = None) -> None:
    """Writes one record of the pass that holds (or held) the lease; the caller fences it."""
    Record.objects.create(thread_id=lease.thread_id, kind=kind, job_id=job_id, token=lease.token, epoch=lease.epoch)


def answer(job_id: int) -> None:
    """Gives a job its answer: only an intent, which recovery applies if the job waits for it already."""
    Job.objects.filter(pk=job_id).update(answered=True)


def open_jobs(thread_id: str) -> list[Job]:
    """What is not settled, in the order of admission."""
    return list(Job.objects.filter(thread_id=thread_id).exclude(state=DONE).order_by("pk"))


@dataclass
class JobRuntime:
    """Does one job per head attempt."""

    suspends_blindly: bool = False
    """The broken form: a job that asks is suspended without a look for its answer."""
    fails: bool = False
    """The head attempt raises."""
    inert: bool = False
    commits_before_user_code: bool = True
    begin_head: BeginHead | None = None

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        """Notes that a pass began, and resumes every job whose answer came."""
        with work.fenced():
            append(_lease(work), ENTERED)
        return [self._recover(work, job) for job in open_jobs(work.thread_id)]

    def _recover(self, work: Work, job: Job) -> RecoveryReport:
        if not (job.state == WAITING and job.answered):
            return RecoveryReport(submission_id=str(job.pk), decision="none", disposition="none")
        with work.fenced():
            Job.objects.filter(pk=job.pk, state=WAITING, answered=True).update(state=READY, asks=False)
        return RecoveryReport(submission_id=str(job.pk), decision="resume", disposition=REPAIRED)

    def process_head(self, work: Work) -> int:
        if self.fails:
            message = "the head attempt failed"
            raise ValueError(message)
        now = clock.now()
        job = next((job for job in open_jobs(work.thread_id) if job.state == READY and job.can_go_on(now)), None)
        if job is None:
            return 0
        return 0 if job.asks and self._suspended(work, job) else self._settle(work, job)

    def _suspended(self, work: Work, job: Job) -> bool:
        """Lets the job wait unless its answer is there already, which is looked for under the row's lock."""
        wanting = Job.objects.filter(pk=job.pk, state=READY)
        with work.fenced():
            return bool((wanting if self.suspends_blindly else wanting.filter(answered=False)).update(state=WAITING))

    def _settle(self, work: Work, job: Job) -> int:
        with work.fenced(progress=True):
            settled = Job.objects.filter(pk=job.pk, state=READY).update(state=DONE)
            if settled:
                append(_lease(work), SETTLED, job.pk)
        return settled


@dataclass
class JobLedger:
    """Reads the jobs themselves."""

    trusts_states: bool = False
    """As the reference: a job that waits is stable, whatever came; recovery of a later pass will look."""
    on_scan: Callable[[], None] = lambda: None
    inert: bool = False

    def thread_exists(self, thread_id: str) -> bool:
        return Job.objects.filter(thread_id=thread_id).exists()

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        self.on_scan()
        jobs, now = open_jobs(thread_id), clock.now()
        active = [job for job in jobs if job.can_go_on(now) and not (self.trusts_states and job.state == WAITING)]
        ahead = [job.due_at for job in jobs if job.state == READY and job.due_at is not None and job.due_at > now]
        return Residue(
            nonterminal=len(jobs),
            autonomous=bool(active),
            claimable_head=any(job.state == READY for job in active),
            next_due=min(ahead, default=None),
        )


@dataclass
class Outbox:
    """The message wave: sends what is due and writes the reply, which decides something."""

    bumps: bool = True
    """The broken form does not: then a caught-up pass hides the reply from everybody."""
    inert: bool = False

    def pending_deadline(self, thread_id: str) -> datetime | None:
        due = Letter.objects.filter(thread_id=thread_id, sent=False).aggregate(at=Min("due_at"))
        return cast("datetime | None", due["at"])

    def drain(self, work: Work) -> None:
        for letter in Letter.objects.filter(thread_id=work.thread_id, sent=False, due_at__lte=clock.now()):
            with work.fenced(bump=self.bumps):
                if Letter.objects.filter(pk=letter.pk, sent=False).update(sent=True):
                    answer(letter.job_id)

    def pending_threads(self, limit: int) -> Iterable[str]:
        return Letter.objects.filter(sent=False).values_list("thread_id", flat=True).distinct()[:limit]


@dataclass
class Sink(InertPublication):
    """Publishes settlements from a cursor over the records."""

    delivered: list[int] = field(default_factory=list)
    """Jobs whose settlement reached the outside, in order; repeats are allowed."""
    inert: bool = False

    def drain(self, work: Work | None, thread_id: str) -> None:
        position = _position(thread_id)
        for record in settlements(thread_id, after=position):
            self.delivered.append(cast("int", record.job_id))
            self._advance(work, thread_id, position, record.pk)
            position = record.pk

    def _advance(self, work: Work | None, thread_id: str, before: int, position: int) -> None:
        assert work is not None, "only a pass drains this sink"
        with work.fenced():
            Cursor.objects.filter(thread_id=thread_id, position=before).update(position=position)

    def pending_deadline(self, thread_id: str) -> datetime | None:
        """Now, while a settlement lies between the cursor and the head of the log."""
        return clock.now() if settlements(thread_id, after=_position(thread_id)).exists() else None


def settlements(thread_id: str, *, after: int) -> models.QuerySet[Record]:
    """The settlements behind a position of the log, in order."""
    return Record.objects.filter(Q(thread_id=thread_id, kind=SETTLED, pk__gt=after)).order_by("pk")


def _position(thread_id: str) -> int:
    return Cursor.objects.get_or_create(thread_id=thread_id)[0].position


def _lease(work: Work) -> Lease:
    return cast("PassWork", work).lease


def job_hooks(
    *,
    runtime: JobRuntime | None = None,
    ledger: JobLedger | None = None,
    outbox: Outbox | None = None,
    sink: Sink | None = None,
) -> Hooks:
    """The ports over these tables; without an outbox or a sink there is none."""
    return Hooks(
        runtime=runtime or JobRuntime(),
        ledger=ledger or JobLedger(),
        messages=outbox or Outbox(inert=True),
        publication=(sink,) if sink else (),
    )
