"""From the commit of a mutation to the begin of its pass, with a real worker on Redis.

Mutations of fresh threads at a steady pace. The commit's time is taken in the first hook after it, by this
process's clock plus its offset to the database's; the begin's time is what the pass itself recorded.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial

from django.db import transaction

from benchmarks import ports, workers
from benchmarks.field import contest
from benchmarks.meters import clock_offset, percentile, wait_until
from benchmarks.options import Options
from benchmarks.report import Outcome, Target
from benchmarks.stand import Stand
from config.celery import app
from maintenance.api import mutation
from maintenance.conf import get_settings
from maintenance.models import PassRun

NAME = "latency"
TITLE = "from commit to pass, 50 mutations a second"

PACE = timedelta(milliseconds=20)
WARM = 40


def run(stand: Stand, options: Options) -> Outcome:
    """400 mutations in each round, at full size; one worker of two children."""
    contest.empty_tables()
    stand.empty_broker()
    settings = get_settings()
    environment = {"BENCH_MAINTENANCE": json.dumps(ports.INERT)}
    hired = workers.hired(
        stand,
        "config",
        app,
        idle_queue=settings.control_queue,
        workers=1,
        concurrency=2,
        environment=environment,
    )
    with hired as crew:
        crew.open(settings.queue)
        _paced("warm", WARM)
        rounds = [_paced(f"round-{number}", options.sized(400)) for number in range(options.rounds)]
    outcome = Outcome(NAME, TITLE)
    for percent, target in ((50, Target(10)), (95, None), (99, Target(60))):
        outcome.add(f"p{percent}", [percentile(latencies, percent) for latencies in rounds], "ms", target)
    outcome.add("slowest", [max(latencies) for latencies in rounds], "ms")
    return outcome


def _paced(prefix: str, amount: int) -> list[float]:
    """Milliseconds from commit to begin of each mutation."""
    offset = clock_offset()
    committed: dict[str, datetime] = {}
    due = time.monotonic()
    for number in range(amount):
        due += PACE.total_seconds()
        time.sleep(max(0.0, due - time.monotonic()))
        _mutate(f"{prefix}-{number}", committed)
    runs = PassRun.objects.filter(thread_id__startswith=f"{prefix}-", epoch=1)
    wait_until(lambda: runs.count() == amount, seconds=60, what="the passes")
    begun = dict(runs.values_list("thread_id", "started_at"))
    return [(begun[name] - at - offset) / timedelta(milliseconds=1) for name, at in committed.items()]


def _mutate(thread_id: str, committed: dict[str, datetime]) -> None:
    with transaction.atomic():
        # Registered before the gate's own hook, so it runs first: right after the commit, before the hint.
        transaction.on_commit(partial(_stamp, thread_id, committed))
        with mutation(thread_id):
            pass


def _stamp(thread_id: str, committed: dict[str, datetime]) -> None:
    committed[thread_id] = datetime.now(UTC)
