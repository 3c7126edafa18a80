"""Every schedule of two operations in one world, and the first of them that breaks an invariant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count, product

from maintenance import hooks
from maintenance.testing import fixed_jitter, frozen_clock
from tests.model import ledger, operations
from tests.model.invariants import at_rest, untold, violations
from tests.model.ledger import JobLedger
from tests.model.operations import KINDS, REQUIRED, THREAD, WORLDS
from tests.model.schedule import Stage


def meetings(xs: Iterable[str], ys: Iterable[str]) -> list[tuple[str, str, str]]:
    """Every (world, X, Y) of these operations that means something."""
    triples = product(WORLDS, xs, ys)
    return [(world, x, y) for world, x, y in triples if world in KINDS[x].worlds and world in KINDS[y].worlds]


FURTHER = [name for name in KINDS if name not in REQUIRED]
REQUIRED_MEETINGS = meetings(REQUIRED, REQUIRED)
FURTHER_MEETINGS = [*meetings(FURTHER, REQUIRED), *meetings(REQUIRED, FURTHER)]


def broken_schedules(stage: Stage, world: str, x: str, y: str) -> Iterator[str]:
    """Runs X against Y at each gap of X in turn; says how each schedule went that broke something."""
    for gap in count():
        found, gaps = _run(stage, world, x, y, gap)
        if found:
            where = gaps[gap] if gap < len(gaps) else "its end"
            yield f"{x} stopped before [{where}], {y} ran, in the world `{world}`: {'; '.join(found)}"
        if gap >= len(gaps) - 1:
            return


def _run(stage: Stage, world: str, x: str, y: str, gap: int) -> tuple[list[str], list[str]]:
    ledger.clean()
    ports = ledger.job_hooks(ledger=JobLedger(trusts_states=True, on_scan=partial(stage.check_locked, THREAD)))
    with frozen_clock(), fixed_jitter(0.5), hooks.installed(ports), stage.listening():
        made = WORLDS[world]("end" in {x, y})
        ran = stage.run(lambda: KINDS[x].run(made), lambda: KINDS[y].run(made), gap)
        found = [*violations(made.watched), *stage.breaches]
        if world != "expired":
            found += untold(THREAD)
        outcomes = operations.calm()
        found += [f"{left} after {', '.join(outcomes)}" for left in at_rest(THREAD)]
        found += violations(made.watched)
    return found, ran.gaps
