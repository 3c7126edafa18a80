"""Calls of which nobody knows whether they happened, and the ways to answer them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agents import api, failpoints
from agents.models import Submission
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, log, run, run_after_a_death
from tests.tools_kit import World, call_rows, crash

if TYPE_CHECKING:
    from collections.abc import Callable

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare


RESOLUTIONS = ["completed-with-result", "failed-with-error", "never-started", "safe-retry", "abort"]
RESULTS = {"completed-with-result": {"charged": 5}, "failed-with-error": "it was declined"}


def call_one(declare: Declare, world: World, name: str = "charge", **options: Any) -> api.Receipt:
    """Submit to an agent that calls one tool of these options."""
    world.tool(name, **options)
    declare("buyer", lambda ctx, _: ctx.call_tool(name, amount=5))
    return api.submit("t", "buyer", None)


@pytest.fixture
def unknown(declare: Declare, world: World, points: Failpoints) -> api.Receipt:
    """Return a submission whose call of the ordinary tool `charge` had its effect and is shown to a person."""
    receipt = call_one(declare, world)
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()
    assert state() == "unknown"
    return receipt


class SideBySide:
    """Two calls, `one` and `two`, that a coroutine handler makes at once; its process dies while both are open."""

    def __init__(self, declare: Declare, world: World) -> None:
        self.declare, self.world = declare, world

    def open(self, one: dict[str, Any] | None = None, two: dict[str, Any] | None = None) -> api.Receipt:
        """Both were prepared and had their effect, and nobody recorded a result."""
        for name, options in (("one", one), ("two", two)):
            api.tool(name, **(options or {}))(self._tool(name))
        self.declare("pair", self._handler)
        receipt = api.submit("t", "pair", None)
        with pytest.raises(Crash):
            deliver("t")
        assert call_rows() == [("one", "prepared", 1), ("two", "prepared", 1)]
        travel(LEASE)
        return receipt

    async def _handler(self, ctx: api.AsyncContext, given: Any) -> list[Any]:
        self.both = asyncio.Barrier(2)
        self.dies = ctx.attempt == 1
        return list(await asyncio.gather(ctx.call_tool("one"), ctx.call_tool("two")))

    def _tool(self, name: str) -> Callable[[], Any]:
        async def tool() -> str:
            self.world.did.append(name)
            if self.dies:
                await self.both.wait()
                raise Crash("t")
            return f"{name} again"

        return tool


@pytest.fixture
def pair(declare: Declare, world: World) -> SideBySide:
    return SideBySide(declare, world)


def state() -> str:
    return Submission.objects.get().state


def resolve(receipt: api.Receipt, resolution: str, call: str = "charge", **more: Any) -> api.Resolution:
    if "result" not in more and resolution in RESULTS:
        more["result"] = RESULTS[resolution]
    return api.resolve_unknown(receipt, call, resolution, **{"actor": "ann", "reason": "looked it up", **more})


def come_to_rest() -> None:
    """One pass more: what an attempt marked, recovery has not looked at yet."""
    travel(timedelta(seconds=1))
    assert len(run()) == 1


def tool_records() -> list[tuple[str, str, int]]:
    """Family, call and try of every record about a call."""
    return [
        (record.family, record.payload["call"], record.payload["tries"])
        for record in log()
        if record.family.startswith("tool-")
    ]
