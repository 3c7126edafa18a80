"""What the gate costs: mutations per second on one hot thread and over many, beside the same insert without it.

One process and one connection. The body inserts one row. Hints go to the broker as always: one for each thread
whose slot moved. Statements and transactions are counted over the gate and its body together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import transaction

from benchmarks.field import contest
from benchmarks.meters import counted_statements, counters
from benchmarks.models import Job
from benchmarks.options import Options
from benchmarks.report import Outcome
from benchmarks.stand import Stand
from maintenance.api import mutation

NAME = "mutations"
TITLE = "what the gate costs"

Write = Callable[[int], None]


def run(stand: Stand, options: Options) -> Outcome:
    """500 writes of each kind in each round, at full size."""
    amount = options.sized(500)
    kinds: dict[str, Write] = {"plain insert": _insert, "one hot thread": _hot, "a thread each": _cold}
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    costs: dict[str, tuple[float, float]] = {}
    for _ in range(options.rounds):
        contest.empty_tables()
        stand.empty_broker()
        for kind, write in kinds.items():
            write(-1)
            speeds[kind].append(_speed(write, amount))
            costs[kind] = _cost(write, amount)
    outcome = Outcome(NAME, TITLE)
    for kind, values in speeds.items():
        outcome.add(f"{kind}: writes", values, "1/s")
        outcome.add(f"{kind}: statements", [costs[kind][0]], "per write")
        outcome.add(f"{kind}: transactions", [costs[kind][1]], "per write")
    return outcome


def _insert(number: int) -> None:
    with transaction.atomic():
        Job.objects.create(entity="hot", number=number)


def _hot(number: int) -> None:
    with mutation("hot"):
        Job.objects.create(entity="hot", number=number)


def _cold(number: int) -> None:
    with mutation(f"thread-{number}"):
        Job.objects.create(entity="cold", number=number)


def _speed(write: Write, amount: int) -> float:
    started = time.perf_counter()
    for number in range(amount):
        write(number)
    return amount / (time.perf_counter() - started)


def _cost(write: Write, amount: int) -> tuple[float, float]:
    """Statements and transactions of one write; threads that exist by now are written again."""
    sample = min(amount, 100)
    before = counters()
    with counted_statements() as statements:
        for number in range(sample):
            write(number)
    spent = counters() - before
    # Two transactions more: the reading of the counters themselves.
    return len(statements) / sample, max(0, spent.commits - 2) / sample
