"""What threads cost that are armed for next year: the time of a sweep, the memory of a worker, the queue.

Rows are made by one statement. The statement that a sweep sends is timed as the sweep sends it, and explained.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass

from django.db import connection

from benchmarks import ports, workers
from benchmarks.field import contest
from benchmarks.meters import counted_statements, plan_of
from benchmarks.options import Options
from benchmarks.report import Outcome, Target
from benchmarks.stand import Stand
from config.celery import app
from maintenance import sweep
from maintenance.conf import get_settings

NAME = "sleepers"
TITLE = "a sweep over threads that are armed for next year"

AMOUNTS = (0, 200_000, 1_000_000)
SWEEPS = 50
LIVED_SECONDS = 6.0
"""How long a worker lives with the rows before it is measured: some sweeps of its own timer."""

_FILL = """
    INSERT INTO wakeful_maintenance_threadmaintenance
           (thread_id, dirty, processed, alarm_at, alarm_seq, updated_at)
    SELECT 'sleeper-' || n, 1, 1, now() + interval '1 year' + n * interval '1 second', 1, now()
      FROM generate_series(%s::int, %s::int) AS n
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look, with so many sleepers."""

    sweep_ms: float
    memory_mib: float
    queue: int
    plan: list[str]


def run(stand: Stand, options: Options) -> Outcome:
    """0, 200,000 and 1,000,000 sleepers at full size, beside one worker of two children that lives through all."""
    contest.empty_tables()
    stand.empty_broker()
    queue = get_settings().queue
    hired = workers.hired(
        stand,
        "config",
        app,
        idle_queue=get_settings().control_queue,
        workers=1,
        concurrency=2,
        environment={"BENCH_MAINTENANCE": json.dumps(ports.INERT)},
    )
    looks: dict[int, Seen] = {}
    with hired as crew:
        crew.open(queue)
        present = 0
        for amount in (options.sized(amount) if amount else 0 for amount in AMOUNTS):
            _fill(present, amount)
            present = amount
            time.sleep(LIVED_SECONDS)
            looks[amount] = Seen(_sweep_ms(), crew.memory() / 2**20, stand.queue_length(queue), _plan())
    return _told(looks)


def _told(looks: dict[int, Seen]) -> Outcome:
    outcome = Outcome(NAME, TITLE)
    for amount, seen in looks.items():
        outcome.add(f"{amount:,} sleepers: one sweep", [seen.sweep_ms], "ms", Target(20))
        outcome.add(f"{amount:,} sleepers: memory of the worker", [seen.memory_mib], "MiB")
        outcome.add(f"{amount:,} sleepers: messages in the queue", [float(seen.queue)], "1", Target(0))
    first, last = next(iter(looks.values())), list(looks.values())[-1]
    outcome.add("growth of the worker's memory", [last.memory_mib - first.memory_mib], "MiB", Target(8))
    outcome.notes += [line for line in last.plan if "Scan" in line or "Time" in line]
    return outcome


def _fill(present: int, amount: int) -> None:
    if amount > present:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
            cursor.execute(_FILL, [present + 1, amount])
            # As autovacuum does in its own time: without it the planner knows nothing of the new rows.
            cursor.execute("VACUUM ANALYZE wakeful_maintenance_threadmaintenance")


def _sweep_ms() -> float:
    """The median of many sweeps."""
    times = []
    for _ in range(SWEEPS):
        started = time.perf_counter()
        sweep.sweep()
        times.append((time.perf_counter() - started) * 1_000)
    return statistics.median(times)


def _plan() -> list[str]:
    with counted_statements() as statements:
        sweep.sweep()
    return plan_of(*statements.sent[0])
