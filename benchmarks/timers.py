"""How late 2,000 timers fire: quiet threads armed for scattered moments within the dispatch horizon.

The worker holds their messages until they are due. Lateness is what each pass recorded: from the deadline of its
slot to its begin, both by the database's clock.
"""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta

from benchmarks import ports, workers
from benchmarks.field import contest
from benchmarks.meters import percentile, wait_until
from benchmarks.options import Options
from benchmarks.report import Outcome
from benchmarks.stand import Stand
from config.celery import app
from maintenance import clock
from maintenance.api import ensure_scheduled_by
from maintenance.conf import get_settings
from maintenance.models import PassRun, ThreadMaintenance

NAME = "timers"
TITLE = "lateness of timers"

LEAD = timedelta(seconds=3)
"""From the end of arming to the first timer."""
SPREAD = timedelta(seconds=20)


def run(stand: Stand, options: Options) -> Outcome:
    """2,000 timers over 20 seconds at full size; one worker of two children. One round: it takes half a minute."""
    contest.empty_tables()
    stand.empty_broker()
    settings, amount = get_settings(), options.sized(2_000)
    hired = workers.hired(
        stand,
        "config",
        app,
        idle_queue=settings.control_queue,
        workers=1,
        concurrency=2,
        environment={"BENCH_MAINTENANCE": json.dumps(ports.INERT)},
    )
    with hired as crew:
        crew.open(settings.queue)
        arming = _arm(amount)
        runs = PassRun.objects.filter(due_at__isnull=False)
        wait_until(lambda: runs.count() >= amount, seconds=120, every=0.5, what="the timers to fire")
    late = [max(0.0, (run.started_at - run.due_at).total_seconds() * 1_000) for run in runs if run.due_at]
    outcome = Outcome(NAME, TITLE)
    for percent in (50, 95, 99):
        outcome.add(f"lateness p{percent}", [percentile(late, percent)], "ms")
    outcome.add("latest", [max(late)], "ms")
    outcome.add("armed", [amount / arming], "1/s")
    outcome.add("passes of a timer", [runs.count() / amount], "1")
    return outcome


def _arm(amount: int) -> float:
    """Arms the timers and returns how many seconds that took."""
    ThreadMaintenance.objects.bulk_create(
        ThreadMaintenance(thread_id=f"timer-{number}", dirty=1, processed=1) for number in range(amount)
    )
    started, scatter = time.monotonic(), random.Random(2)
    # Arming takes a while; the first timer must not come before the last is armed.
    first = clock.now() + LEAD + amount * timedelta(milliseconds=10)
    for number in range(amount):
        ensure_scheduled_by(f"timer-{number}", first + scatter.random() * SPREAD)
    return time.monotonic() - started
