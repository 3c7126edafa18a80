"""Tool calls of coroutine handlers: the same promises, also for calls that run beside each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connection

from agents import aborts, api, failpoints, tools
from agents.attempt import Yielded
from agents.drivers import asynchronous
from agents.models import AbortIntent, Submission, ToolCall
from maintenance import drain
from maintenance.delivery import Outcome
from maintenance.testing import deliver, travel
from maintenance.work import PassWork
from tests.agents_kit import LEASE, agents_database, endings, families, run, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

AROUND_A_CALL = [name for name in failpoints.ALL if name.startswith("tools:")]


def submit(declare: Declare, handler: Any) -> api.Receipt:
    declare("pair", handler)
    return api.submit("t", "pair", None)


def statuses() -> dict[str, str]:
    return dict(ToolCall.objects.values_list("call", "status"))


def test_calls_run_beside_each_other_and_are_recorded_one_by_one(declare: Declare, world: World) -> None:
    """Neither can end unless both run at once."""

    async def handler(ctx: api.AsyncContext, given: Any) -> list[Any]:
        met = asyncio.Barrier(2)

        @api.tool("meet")
        async def meet(who: str) -> str:
            await met.wait()
            world.did.append(who)
            return who

        both = await asyncio.gather(ctx.call_tool("meet", who="ann"), ctx.call_tool("meet", who="bob"))
        tools.unregister("meet")
        return list(both)

    receipt = submit(declare, handler)
    run()
    assert settled(receipt).result == ["ann", "bob"]
    assert call_rows() == [("meet", "settled", 1), ("meet 2", "settled", 1)]
    assert families()[2:] == [*["tool-prepared"] * 2, *["tool-settled"] * 2, "submission-settled"]
    sound()


def test_a_plain_tool_runs_on_the_helper_thread_where_the_database_may_be_used(declare: Declare, world: World) -> None:
    world.tool("count", does=Submission.objects.count)

    async def handler(ctx: api.AsyncContext, given: Any) -> list[Any]:
        return list(await asyncio.gather(*(ctx.call_tool("count", amount=n) for n in range(3))))

    receipt = submit(declare, handler)
    run()
    assert settled(receipt).result == [1, 1, 1]
    assert [call for call, _, _ in call_rows()] == ["count", "count 2", "count 3"]


@pytest.mark.parametrize("name", AROUND_A_CALL)
def test_an_ordinary_tool_of_a_coroutine_handler_never_runs_twice(
    declare: Declare, world: World, points: Failpoints, name: str
) -> None:
    @api.tool("charge")
    async def charge() -> str:
        await asyncio.sleep(0)
        world.did.append("charge")
        return "charged"

    async def handler(ctx: api.AsyncContext, given: Any) -> Any:
        return await ctx.call_tool("charge")

    receipt = submit(declare, handler)
    crash(points, name)
    run_after_a_death()

    assert world.counts["charge"] <= 1
    if name in {failpoints.TOOL_BEFORE, failpoints.TOOL_PREPARING, failpoints.TOOL_SETTLED}:
        assert settled(receipt).result == "charged"
        assert world.counts["charge"] == 1
    else:
        assert statuses() == {"charge": "unknown"}


def test_a_failure_and_an_awaitable_from_a_plain_function_are_treated_as_everywhere(
    declare: Declare, world: World
) -> None:
    async def later() -> str:
        return "awaited"

    async def fails() -> None:
        raise api.ToolFailure("no", tag="No")

    async def handler(ctx: api.AsyncContext, given: Any) -> list[str]:
        got = await ctx.call_tool(lambda: later(), name="indirect")  # noqa: PLW0108 - a plain function
        try:
            await ctx.call_tool(fails)
        except api.ToolFailed as failed:
            return [got, failed.tag]
        return []

    receipt = submit(declare, handler)
    run()
    assert settled(receipt).result == ["awaited", "No"]


def test_289_f11_the_result_of_a_call_is_recorded_although_its_sibling_fails_the_run(
    declare: Declare, world: World
) -> None:
    """The run fails while a sibling still runs: it is finished and recorded before the settlement."""

    async def handler(ctx: api.AsyncContext, given: Any) -> None:
        failed = asyncio.Event()

        async def fails() -> None:
            raise api.ToolFailure("no")

        async def slow() -> str:
            await failed.wait()
            world.did.append("slow")
            return "done after all"

        async def watched() -> None:
            try:
                await ctx.call_tool(fails)
            finally:
                failed.set()

        await asyncio.gather(watched(), ctx.call_tool(slow))

    receipt = submit(declare, handler)
    run()
    assert settled(receipt).outcome == "failed"
    assert world.did == ["slow"]
    assert statuses() == {"fails": "settled", "slow": "settled"}
    assert families()[-1] == "submission-settled"
    sound()


def test_a_call_that_the_handler_does_not_await_is_recorded_before_the_settlement(
    declare: Declare, world: World
) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> str:
        begun = asyncio.Event()

        async def slow() -> None:
            begun.set()
            await asyncio.sleep(0.001)
            world.did.append("slow")

        task = asyncio.ensure_future(ctx.call_tool(slow))
        await begun.wait()
        del task
        return "did not wait"

    receipt = submit(declare, handler)
    run()
    assert settled(receipt).result == "did not wait"
    assert families() == ["thread-created", "user-input", "tool-prepared", "tool-settled", "submission-settled"]
    assert world.did == ["slow"]


def test_a_call_goes_on_when_the_handler_loses_patience(declare: Declare, world: World, points: Failpoints) -> None:
    """A timeout around a call ends the waiting, not the tool: its result is there on the replay."""

    async def handler(ctx: api.AsyncContext, given: Any) -> str:
        impatient = asyncio.Event()

        async def slow() -> str:
            impatient.set()
            await asyncio.sleep(0.001)
            world.did.append("slow")
            return "done"

        waiting = asyncio.ensure_future(ctx.call_tool(slow))
        if ctx.attempt == 1:
            await impatient.wait()
            waiting.cancel()
        try:
            return str(await waiting)
        except asyncio.CancelledError:
            return str(await ctx.step("gave up", lambda: "gave up"))

    receipt = submit(declare, handler)
    crash(points, failpoints.SETTLE_BEFORE)
    assert statuses() == {"slow": "settled"}
    run_after_a_death()
    assert settled(receipt).result == "done"
    assert world.did == ["slow"]


def test_a_drained_attempt_finishes_the_calls_that_run_and_begins_no_other(declare: Declare, world: World) -> None:
    """Graceful shutdown leaves no call open: one would be shown to a person for nothing."""

    async def handler(ctx: api.AsyncContext, given: Any) -> list[Any]:
        draining, stopped = asyncio.Event(), asyncio.Event()

        async def slow() -> str:
            drain.request()
            draining.set()
            await stopped.wait()
            world.did.append("slow")
            return "slow"

        async def late() -> str:
            world.did.append("late")
            return "late"

        async def second() -> Any:
            if ctx.attempt == 1:
                await draining.wait()
            try:
                return await ctx.call_tool(late)
            except Yielded:
                stopped.set()
                raise

        return list(await asyncio.gather(ctx.call_tool(slow), second()))

    receipt = submit(declare, handler)
    assert deliver("t").outcome is Outcome.RAN
    assert statuses() == {"slow": "settled"}
    assert endings() == ["yielded"]
    drain.reset()
    run_after_a_death()
    assert settled(receipt).result == ["slow", "late"]
    assert world.did == ["slow", "late"]


def test_a_call_that_became_unknown_does_not_take_the_result_of_its_sibling_away(
    declare: Declare, world: World
) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> list[Any]:
        told = asyncio.Event()

        async def unsure() -> None:
            told.set()
            raise api.OutcomeUnknown("no answer")

        async def sure() -> str:
            await told.wait()
            while statuses_seen.get("unsure") != "unknown":
                statuses_seen.update(await asyncio.to_thread(elsewhere_statuses))
            world.did.append("sure")
            return "sure"

        statuses_seen: dict[str, str] = {}
        return list(await asyncio.gather(ctx.call_tool(unsure), ctx.call_tool(sure)))

    receipt = submit(declare, handler)
    deliver("t")
    assert statuses() == {"unsure": "unknown", "sure": "settled"}
    assert Submission.objects.get().state == "unknown"
    travel(LEASE)
    run()
    api.resolve_unknown(receipt, "unsure", "completed-with-result", result="by ann", actor="ann", reason="saw it")
    run()
    assert settled(receipt).result == ["by ann", "sure"]
    assert world.did == ["sure"]
    sound()


def test_an_abort_of_a_run_that_was_left_waiting_is_settled_by_recovery_and_fails_no_pass(
    declare: Declare, world: World, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call became unknown, its sibling still runs: the attempt has ended and can settle nothing any more."""
    settings.AGENTS = {"ABORT_POLL_MS": 5}
    monkeypatch.setattr(asynchronous, "LOOK", 0.01)

    async def handler(ctx: api.AsyncContext, given: Any) -> None:
        begun, looked = asyncio.Event(), asyncio.Event()
        loop, look = asyncio.get_running_loop(), ctx._attempt.look

        def noted() -> None:
            look()
            if AbortIntent.objects.exists():
                loop.call_soon_threadsafe(looked.set)

        async def unsure() -> None:
            await begun.wait()
            raise api.OutcomeUnknown("no answer")

        async def sure() -> str:
            begun.set()
            await asyncio.wait({first})
            await sync_to_async(aborts.abort)(ctx.submission_id, author="ann", reason="enough")
            monkeypatch.setattr(ctx._attempt, "look", noted)
            await looked.wait()
            return "sure"

        first = asyncio.ensure_future(ctx.call_tool(unsure))
        await asyncio.gather(first, ctx.call_tool(sure))

    receipt = submit(declare, handler)
    assert deliver("t").outcome is Outcome.RAN
    travel(LEASE)
    run()
    assert settled(receipt).outcome == "aborted"
    sound()


def elsewhere_statuses() -> dict[str, str]:
    try:
        return statuses()
    finally:
        connection.close()


def test_the_deadline_cuts_a_call_off_and_leaves_it_open(declare: Declare, world: World) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> None:
        begun = asyncio.Event()

        async def endless() -> None:
            world.did.append("endless")
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                world.did.append("stopped")

        work = ctx._attempt.work
        assert isinstance(work, PassWork)
        waiting = asyncio.ensure_future(ctx.call_tool(endless))
        await begun.wait()
        work.deadline = 0.0
        await waiting

    submit(declare, handler)
    assert deliver("t").outcome is Outcome.INTERRUPTED
    assert world.did == ["endless", "stopped"]
    assert statuses() == {"endless": "prepared"}
    assert endings() == ["interrupted"]
    run_after_a_death()
    assert statuses() == {"endless": "unknown"}
    assert world.counts["endless"] == 1


def test_an_interruption_in_an_async_tool_that_the_handler_swallows_settles_nothing(
    declare: Declare, world: World
) -> None:
    async def cut() -> None:
        raise SoftTimeLimitExceeded

    async def handler(ctx: api.AsyncContext, given: Any) -> str:
        try:
            await ctx.call_tool(cut)
        except BaseException:  # noqa: BLE001 - the worst a handler can do
            return "swallowed"
        return "done"

    receipt = submit(declare, handler)
    assert deliver("t").outcome is Outcome.INTERRUPTED
    assert api.settlement(receipt) is None
    assert statuses() == {"cut": "prepared"}


def test_a_tool_that_cancels_itself_leaves_its_call_open_and_settles_nothing(declare: Declare, world: World) -> None:
    async def cancels() -> None:
        world.did.append("cancels")
        raise asyncio.CancelledError

    async def handler(ctx: api.AsyncContext, given: Any) -> str:
        try:
            await ctx.call_tool(cancels)
        except asyncio.CancelledError:
            return "swallowed"
        return "done"

    receipt = submit(declare, handler)
    assert deliver("t").outcome is Outcome.FAILED
    assert api.settlement(receipt) is None
    run_after_a_death()
    assert statuses() == {"cancels": "unknown"}
    assert world.counts["cancels"] == 1


def test_f7_a_stepped_coroutine_tool_goes_on_after_its_last_step(
    declare: Declare, world: World, points: Failpoints
) -> None:
    @api.tool("book", kind="stepped")
    async def book(ctx: api.AsyncContext, to: str) -> Any:
        world.did.append("entered")
        return [await ctx.step(part, booked, part, to) for part in ("flight", "hotel")]

    def booked(part: str, to: str) -> str:
        world.did.append(f"{part} to {to}")
        return part

    async def handler(ctx: api.AsyncContext, given: Any) -> Any:
        return list(await asyncio.gather(*(ctx.call_tool("book", to=to) for to in ("rome", "oslo"))))

    receipt = submit(declare, handler)
    crash(points, failpoints.STEP_AFTER)
    run_after_a_death()
    assert settled(receipt).result == [["flight", "hotel"]] * 2
    assert sorted(did for did in world.did if did != "entered") == [
        "flight to oslo",
        "flight to rome",
        "hotel to oslo",
        "hotel to rome",
    ]
    sound()
