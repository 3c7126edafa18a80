"""How a run ends, the same wherever a crash comes, and what it leaves in the log (scenarios H, L and Q)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from agents import api, failpoints
from tests.agents_kit import agents_database, families, run, run_after_a_death, settled, settlements_in_log, sound
from tests.tools_kit import World, crash, world

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

SETTLE = [name for name in failpoints.ALL if name.startswith("settle:")]


def completes(ctx: api.Context, _: Any) -> Any:
    return ctx.step("one", lambda: "done")


def fails(ctx: api.Context, _: Any) -> None:
    ctx.step("one", lambda: "done")
    raise api.AgentFailure("the supplier is closed", tag="Closed")


def spends_its_budget(ctx: api.Context, _: Any) -> None:
    for number in range(3):
        ctx.call_tool("charge", amount=number)


ENDS: list[tuple[Callable[[api.Context, Any], Any], tuple[str, Any, str]]] = [
    (completes, ("completed", "done", "")),
    (fails, ("failed", None, "Closed")),
    (spends_its_budget, ("failed", None, "BudgetExhausted")),
]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("place", SETTLE)
@pytest.mark.parametrize(("handler", "end"), ENDS, ids=["completes", "fails", "spends its budget"])
def test_92_94_260_a_crash_around_the_settlement_changes_neither_outcome_nor_reason(
    declare: Declare,
    world: World,
    points: Failpoints,
    settings: Settings,
    handler: Callable[[api.Context, Any], Any],
    end: tuple[str, Any, str],
    place: str,
) -> None:
    settings.AGENTS = {"MAX_TOOL_CALLS": 2}
    world.tool("charge")
    declare("ending", handler)
    receipt = api.submit("t", "ending", None)

    crash(points, place)
    run_after_a_death()

    found = settled(receipt)
    assert (found.outcome, found.result, found.failure.error_tag if found.failure else "") == end
    assert settlements_in_log() == 1
    assert world.counts["charge"] == (2 if handler is spends_its_budget else 0)
    sound()


def test_147_148_only_what_acts_outside_is_recorded_before_it_runs(declare: Declare, world: World) -> None:
    """A step has no effect to be afraid of, so one record of its result is enough."""
    world.tool("charge")
    declare("mixed", lambda ctx, _: [ctx.step("look", lambda: "seen"), ctx.call_tool("charge", amount=5)])
    receipt = api.submit("t", "mixed", None)
    run()

    assert settled(receipt).result == ["seen", "charge 5"]
    assert families()[2:] == ["step-settled", "tool-prepared", "tool-settled", "submission-settled"]


def test_152_a_call_that_never_started_runs_once_after_a_person_has_said_so(
    declare: Declare, world: World, points: Failpoints
) -> None:
    world.tool("charge")
    declare("buyer", lambda ctx, _: ctx.call_tool("charge", amount=5))
    receipt = api.submit("t", "buyer", None)
    crash(points, failpoints.TOOL_PREPARED)
    run_after_a_death()
    assert world.did == []

    api.resolve_unknown(receipt, "charge", "never-started", actor="ann", reason="not on the statement")
    run()

    assert settled(receipt).result == "charge 5"
    assert world.did == ["charge"]
    assert families().count("tool-settled") == 1
    sound()
