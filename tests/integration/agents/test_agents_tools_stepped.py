"""Stepped tools are entered again from their top and repeat no recorded step (ledger-recovery, g.5; F7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import api, failpoints
from maintenance import drain
from maintenance.testing import deliver
from tests.agents_kit import agents_database, endings, log, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, outcome_of, submit, world

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database


def test_f7_a_stepped_tool_goes_on_after_its_last_step(declare: Declare, world: World, points: Failpoints) -> None:
    """161: all effects of such a tool are steps, so its open call needs neither reconciler nor person."""

    @api.tool("book", kind="stepped")
    def book(ctx: api.Context, to: str) -> list[str]:
        world.did.append("entered")
        return [ctx.step(part, booked, part, to) for part in PARTS]

    def booked(part: str, to: str) -> str:
        world.did.append(part)
        return f"{part} to {to}"

    receipt = submit(declare, lambda ctx, _: ctx.call_tool("book", to="rome"))
    crash(points, failpoints.STEP_AFTER)
    run_after_a_death()

    assert settled(receipt).result == ["flight to rome", "hotel to rome"]
    assert world.did == ["entered", "flight", "entered", "hotel"]
    assert [record.record_id.rpartition(":")[2] for record in log() if record.family == "step-settled"] == [
        "book/flight",
        "book/hotel",
    ]
    assert call_rows() == [("book", "settled", 1)]
    sound()


PARTS = ("flight", "hotel")


def test_f7_the_steps_of_two_stepped_calls_and_of_the_handler_are_told_apart(declare: Declare, world: World) -> None:
    world.tool("charge")

    @api.tool("book", kind="stepped")
    def book(ctx: api.Context, to: str) -> Any:
        return [ctx.step("flight", lambda: to), ctx.call_tool("charge", amount=1)]

    def handler(ctx: api.Context, given: Any) -> Any:
        return [ctx.step("flight", lambda: "own"), *[ctx.call_tool("book", to=to) for to in ("rome", "oslo")]]

    found = outcome_of(declare, handler)
    assert found.result == ["own", ["rome", "charge 1"], ["oslo", "charge 1"]]
    assert [call for call, _, _ in call_rows()] == ["book", "book/charge", "book 2", "book 2/charge"]
    assert len(set(world.keys)) == 2


def test_f7_a_stepped_tool_may_yield_between_its_steps(declare: Declare, world: World) -> None:
    @api.tool("book", kind="stepped")
    def book(ctx: api.Context) -> Any:
        ctx.step("flight", flight)
        ctx.step("hotel", world.did.append, "hotel")

    def flight() -> None:
        world.did.append("flight")
        drain.request()

    receipt = submit(declare, lambda ctx, _: ctx.call_tool("book"))
    deliver("t")
    assert call_rows() == [("book", "prepared", 1)]
    assert endings() == ["yielded"]
    drain.reset()
    run_after_a_death()
    assert settled(receipt).outcome == "completed"
    assert world.did == ["flight", "hotel"]


def test_f7_a_stepped_tool_that_swallows_the_stop_of_its_step_has_no_result(declare: Declare, world: World) -> None:
    @api.tool("book", kind="stepped")
    def book(ctx: api.Context) -> Any:
        if ctx.attempt == 1:
            drain.request()
        try:
            return ctx.step("flight", lambda: "flight")
        except BaseException:  # noqa: BLE001 - the worst a tool can do
            return "made up"

    receipt = submit(declare, lambda ctx, _: ctx.call_tool("book"))
    deliver("t")
    drain.reset()
    run_after_a_death()
    assert settled(receipt).result == "flight"
