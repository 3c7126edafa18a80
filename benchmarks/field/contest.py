"""One turn of one contestant: enqueue everything while the workers stand still, open them, time the drain.

What is timed, the same for all. The workers run, have done a few jobs to import and connect, and consume nothing.
`enqueue`: from the first call that hands a job over to the return of the last one; for plain Celery that is a
published message, for the others a committed row (and a message for each entity). `drain`: from the request that
opens the queue to the workers until the first look, every 50 ms, that finds all jobs recorded and, for ours, every
thread acknowledged. The jobs' order is round robin over the entities.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celery import Celery
from django.apps import apps
from django.core.management.color import no_style
from django.db import connection
from django.db.models import F

from benchmarks import workers
from benchmarks.meters import Counters, backends, counters, wait_until
from benchmarks.models import Entity, Record
from benchmarks.stand import Stand
from maintenance.models import ThreadMaintenance

DRAIN_SECONDS = 120.0
WARM = (20, 40)
"""Entities and jobs of the warming up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """How one system takes jobs and shows that they are done."""

    name: str
    application: str
    app: Celery
    queue: str
    idle_queue: str
    enqueue: Callable[[str, int], object]
    is_done: Callable[[int], bool]
    verify: Callable[[], None] = lambda: None
    """Raises if what the contestant left is not sound."""
    ports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timed:
    """What was read off while one turn worked."""

    enqueue_seconds: float
    drain_seconds: float
    cpu_seconds: float
    """Processor time of the workers and of the server processes that serve them, during the drain."""
    before: Counters
    """The counters when the drain began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn took."""

    jobs: int
    timed: Timed
    spent: Counters
    """By the drain and the workers' end, the warming up's late reports included."""
    out_of_order: int

    @property
    def drained_per_second(self) -> float:
        return self.jobs / self.timed.drain_seconds

    @property
    def cpu_ms(self) -> float:
        """Processor time of the drain for each job."""
        return self.timed.cpu_seconds / self.jobs * 1_000

    @property
    def per_second(self) -> float:
        """Jobs for each second of enqueueing and draining together."""
        return self.jobs / (self.timed.enqueue_seconds + self.timed.drain_seconds)


def take_turn(stand: Stand, contestant: Contestant, *, entities: int, jobs: int) -> Turn:
    """Runs one contestant from an empty database to all jobs done."""
    empty_tables()
    stand.empty_broker()
    environment = {"BENCH_MAINTENANCE": json.dumps(contestant.ports)}
    hired = workers.hired(
        stand, contestant.application, contestant.app, idle_queue=contestant.idle_queue, environment=environment
    )
    with hired as crew:
        _work_off(contestant, crew, *WARM)
        crew.close(contestant.queue)
        empty_tables()
        timed = _work_off(contestant, crew, entities, jobs)
    spent = counters() - timed.before
    contestant.verify()
    return Turn(jobs=jobs, timed=timed, spent=spent, out_of_order=_out_of_order())


def empty_tables() -> None:
    """Leaves no row of ours and of the benchmarks."""
    labels = ("wakeful_benchmarks", "wakeful_maintenance", "wakeful_agents")
    tables = [m._meta.db_table for m in apps.get_models() if m._meta.app_label in labels]  # noqa: SLF001
    with connection.cursor() as cursor:
        for statement in connection.ops.sql_flush(no_style(), tables):
            cursor.execute(statement)


def all_recorded(jobs: int) -> bool:
    """Whether every job has appended its row."""
    return Record.objects.count() == jobs


def all_acknowledged() -> bool:
    """Whether no thread is dirty or held."""
    rows = ThreadMaintenance.objects.all()
    return not (rows.filter(dirty__gt=F("processed")) | rows.filter(lease_token__isnull=False)).exists()


def _work_off(contestant: Contestant, crew: workers.Crew, entities: int, jobs: int) -> Timed:
    Entity.objects.bulk_create(Entity(name=f"entity-{n}") for n in range(entities))
    started = time.monotonic()
    for number in range(jobs):
        contestant.enqueue(f"entity-{number % entities}", number)
    enqueue_seconds = time.monotonic() - started
    pids, before = [*crew.pids(), *backends()], counters()
    opened, used = time.monotonic(), workers.cpu_seconds(pids)
    crew.open(contestant.queue)
    wait_until(lambda: contestant.is_done(jobs), seconds=DRAIN_SECONDS, what=f"{jobs} jobs of {contestant.name}")
    return Timed(enqueue_seconds, time.monotonic() - opened, workers.cpu_seconds(pids) - used, before)


def _out_of_order() -> int:
    """Jobs that were recorded after a later one of their entity."""
    last: dict[str, int] = {}
    wrong = 0
    for entity, number in Record.objects.order_by("id").values_list("entity", "number"):
        wrong += number < last.get(entity, -1)
        last[entity] = max(number, last.get(entity, -1))
    return wrong
