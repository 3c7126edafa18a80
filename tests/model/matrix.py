"""Every schedule of two operations in one world, and the first of them that breaks an invariant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count, product
from typing import NamedTuple

from maintenance import hooks
from maintenance.testing import fixed_jitter, frozen_clock
from tests.model import ledger, operations
from tests.model.invariants import at_rest, look, untold, violations
from tests.model.ledger import JobLedger
from tests.model.operations import KINDS, REQUIRED, THREAD, WORLDS, World
from tests.model.schedule import Stage


def meetings(xs: Iterable[str], ys: Iterable[str]) -> list[tuple[str, str, str]]:
    """Every (world, X, Y) of these operations that means something."""
    triples = product(WORLDS, xs, ys)
    return [(world, x, y) for world, x, y in triples if world in KINDS[x].worlds and world in KINDS[y].worlds]


PLAIN = ("mutation", "begin", "finish", "append", "end")
"""Those whose statements have a fused form on PostgreSQL."""
PLAIN_MEETINGS = meetings(PLAIN, PLAIN)

START = datetime(2030, 1, 1, tzinfo=UTC)

FURTHER = [name for name in KINDS if name not in REQUIRED]
REQUIRED_MEETINGS = meetings(REQUIRED, REQUIRED)
FURTHER_MEETINGS = [*meetings(FURTHER, REQUIRED), *meetings(REQUIRED, FURTHER)]


def broken_schedules(stage: Stage, world: str, x: str, y: str) -> Iterator[str]:
    """Runs X against Y at each gap of X in turn; says how each schedule went that broke something."""
    rested: set[str] = set()
    for gap in count():
        found, gaps = _run(stage, Meeting(world, x, y, gap), rested)
        if found:
            where = gaps[gap] if gap < len(gaps) else "its end"
            yield f"{x} stopped before [{where}], {y} ran, in the world `{world}`: {'; '.join(found)}"
        if gap >= len(gaps) - 1:
            return


class Meeting(NamedTuple):
    """One schedule."""

    world: str
    x: str
    y: str
    gap: int


def _run(stage: Stage, meeting: Meeting, rested: set[str]) -> tuple[list[str], list[str]]:
    """What was broken, and the gaps of X. `rested`: the states from which a thread is known to come to rest."""
    world, x, y, gap = meeting
    ledger.clean()
    ports = ledger.job_hooks(ledger=JobLedger(trusts_states=True, on_scan=partial(stage.check_locked, THREAD)))
    with frozen_clock(START), fixed_jitter(0.5), hooks.installed(ports), stage.listening():
        made = WORLDS[world]("end" in {x, y})
        ran = stage.run(lambda: KINDS[x].run(made), lambda: KINDS[y].run(made), gap)
        seen = look(THREAD)
        found = violations(made.watched, seen)
        if world != "expired":
            found += untold(seen)
        if (shape := seen.shape()) not in rested:
            found += _restless(made)
            rested.add(shape)
    return [*found, *stage.breaches], ran.gaps


def _restless(made: World) -> list[str]:
    outcomes = operations.calm()
    seen = look(THREAD)
    return [f"{left} after {outcomes}" for left in [*violations(made.watched, seen), *at_rest(seen)]]
