"""The contest: the contestants take turns, round after round, and the ratios of each round are reported.

Ratios compare turns of one round, minutes apart at most, so that a busy machine slows both sides alike.
"""

from __future__ import annotations

from benchmarks.field import contest, plain, protocol, whole
from benchmarks.field.contest import Contestant, Turn
from benchmarks.options import Options
from benchmarks.report import Outcome, Target
from benchmarks.stand import Stand
from config.celery import app as wakeful
from maintenance.conf import get_settings

NAME = "field"
TITLE = "one small job, three ways (jobs per second of draining)"


def run(stand: Stand, options: Options) -> Outcome:
    """200 entities, 2,000 jobs, two workers of one child each; at full size."""
    contestants = _contestants()
    entities, jobs = options.sized(200), options.sized(2_000)
    turns: dict[str, list[Turn]] = {contestant.name: [] for contestant in contestants}
    for _ in range(options.rounds):
        for contestant in contestants:
            turns[contestant.name].append(contest.take_turn(stand, contestant, entities=entities, jobs=jobs))
    outcome = Outcome(NAME, TITLE)
    for name, taken in turns.items():
        _describe(outcome, name, taken)
    _compare(outcome, turns, "protocol", 1.5)
    _compare(outcome, turns, "whole", 0.8)
    return outcome


def _describe(outcome: Outcome, name: str, turns: list[Turn]) -> None:
    outcome.add(f"{name}: drained", [turn.drained_per_second for turn in turns], "jobs/s")
    outcome.add(f"{name}: enqueued and drained", [turn.per_second for turn in turns], "jobs/s")
    outcome.add(f"{name}: processor time", [turn.cpu_ms for turn in turns], "ms/job")
    outcome.add(f"{name}: transactions", [turn.spent.commits / turn.jobs for turn in turns], "per job")
    outcome.add(f"{name}: flushes of the server", [turn.spent.flushes / turn.jobs for turn in turns], "per job")
    outcome.add(f"{name}: out of order", [float(turn.out_of_order) for turn in turns], "jobs")


def _compare(outcome: Outcome, turns: dict[str, list[Turn]], name: str, least: float) -> None:
    pairs = list(zip(turns[name], turns["plain"], strict=True))
    drained = [ours.drained_per_second / theirs.drained_per_second for ours, theirs in pairs]
    total = [ours.per_second / theirs.per_second for ours, theirs in pairs]
    spared = [theirs.cpu_ms / ours.cpu_ms for ours, theirs in pairs]
    outcome.add(f"RATIO {name} / plain Celery, drained", drained, "×", Target(least, at_least=True))
    outcome.add(f"ratio {name} / plain Celery, with enqueueing", total, "×")
    outcome.add(f"ratio plain Celery / {name}, processor time", spared, "×")


def _contestants() -> list[Contestant]:
    settings = get_settings()
    return [
        Contestant(
            name="plain",
            application="benchmarks.field.plain",
            app=plain.app,
            queue=plain.QUEUE,
            idle_queue="idle",
            enqueue=lambda entity, number: plain.append.apply_async(args=(entity, number)),
            is_done=contest.all_recorded,
        ),
        Contestant(
            name="protocol",
            application="config",
            app=wakeful,
            queue=settings.queue,
            idle_queue=settings.control_queue,
            enqueue=protocol.enqueue,
            is_done=lambda jobs: contest.all_recorded(jobs) and contest.all_acknowledged(),
            ports=protocol.PORTS,
        ),
        Contestant(
            name="whole",
            application="config",
            app=wakeful,
            queue=settings.queue,
            idle_queue=settings.control_queue,
            enqueue=whole.enqueue,
            is_done=whole.is_done,
            verify=whole.verify_all,
            ports=whole.PORTS,
        ),
    ]
