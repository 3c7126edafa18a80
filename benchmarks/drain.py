"""5,000 dirty threads, a message for each, drained by two workers; nothing but the passes themselves is done.

The rows and their messages are there before the workers may consume. Timed from the request that opens the queue
until the first look that finds every thread acknowledged. Transactions and flushes are read when the workers have
ended, because only then a server process has reported all of its own; flushes are of the whole server, so they
mean something on a quiet one. Statements are counted over one pass in this process.
"""

from __future__ import annotations

import json
import time

from django.db import connection

from benchmarks import ports, workers
from benchmarks.field import contest
from benchmarks.meters import Counters, counted_statements, counters, wait_until
from benchmarks.options import Options
from benchmarks.report import Outcome
from benchmarks.stand import Stand
from config.celery import app
from maintenance import dispatch, hooks
from maintenance.api import Delivery, run_pass
from maintenance.api import Outcome as Came
from maintenance.conf import get_settings
from maintenance.hooks import Hooks

NAME = "drain"
TITLE = "dirty threads drained by two workers of one child each"

_FILL = """
    INSERT INTO wakeful_maintenance_threadmaintenance
           (thread_id, dirty, processed, alarm_at, alarm_seq, hint_seq, hint_at, hint_attempts, updated_at)
    SELECT %s || n, 2, 1, now(), 1, 1, now() + interval '1 minute', 1, now() FROM generate_series(1, %s) AS n
"""
"""The mark lies ahead, so that no sweep sends a second message while the first ones wait."""


def run(stand: Stand, options: Options) -> Outcome:
    """5,000 threads in each round, at full size."""
    amount = options.sized(5_000)
    drains = [_round(stand, amount) for _ in range(options.rounds)]
    outcome = Outcome(NAME, TITLE)
    outcome.add("passes", [amount / seconds for seconds, _ in drains], "1/s")
    outcome.add("transactions", [spent.commits / amount for _, spent in drains], "per pass")
    outcome.add("flushes of the server", [spent.flushes / amount for _, spent in drains], "per pass")
    outcome.add("statements", [float(_statements_of_a_pass())], "per pass")
    return outcome


def _round(stand: Stand, amount: int) -> tuple[float, Counters]:
    contest.empty_tables()
    stand.empty_broker()
    settings = get_settings()
    environment = {"BENCH_MAINTENANCE": json.dumps(ports.INERT)}
    with workers.hired(stand, "config", app, idle_queue=settings.control_queue, environment=environment) as crew:
        _make_dirty("warm-", 40)
        crew.open(settings.queue)
        _wait(40)
        crew.close(settings.queue)
        _make_dirty("thread-", amount)
        before, started = counters(), time.monotonic()
        crew.open(settings.queue)
        _wait(amount)
        seconds = time.monotonic() - started
    return seconds, counters() - before


def _make_dirty(prefix: str, amount: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_FILL, [prefix, amount])
    for number in range(1, amount + 1):
        dispatch.send(dispatch.Hint(thread_id=f"{prefix}{number}", seq=1))


def _wait(amount: int) -> None:
    wait_until(contest.all_acknowledged, seconds=120, what=f"{amount} threads to be acknowledged")


def _statements_of_a_pass() -> int:
    _make_dirty("counted-", 1)
    with hooks.installed(Hooks()), counted_statements() as statements:
        came = run_pass(Delivery(thread_id="counted-1", seq=1)).outcome
    if came is not Came.RAN:
        message = f"the counted pass did not run: {came}"
        raise RuntimeError(message)
    return len(statements)
