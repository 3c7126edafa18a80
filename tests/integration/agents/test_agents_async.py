"""Coroutine handlers: the same promises as plain ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from agents import api, failpoints
from agents.drivers import asynchronous
from agents.models import Submission
from maintenance import drain
from maintenance.delivery import Outcome
from maintenance.testing import Crash, deliver, travel
from maintenance.work import PassWork
from tests.agents_kit import LEASE, agents_database, endings, families, run, run_after_a_death, settled, sound
from tests.concurrency import elsewhere

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


def test_a_coroutine_handler_has_durable_steps_plain_and_async(declare: Declare) -> None:
    async def slow(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def handler(ctx: api.AsyncContext, given: int) -> list[int]:
        return [await ctx.step("async", slow, given), await ctx.step("plain", lambda: 1)]

    declare("async", handler)
    receipt = api.submit("t", "async", 4)
    run()
    assert settled(receipt).result == [8, 1]
    assert families() == ["thread-created", "user-input", "step-settled", "step-settled", "submission-settled"]
    sound()


def test_steps_may_run_beside_each_other(declare: Declare) -> None:
    async def body(number: int) -> int:
        await asyncio.sleep(0.001 * (3 - number))
        return number

    async def handler(ctx: api.AsyncContext, given: Any) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(f"step {n}", body, n) for n in range(3))))

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    run()
    assert settled(receipt).result == [0, 1, 2]
    sound()


def test_a_coroutine_handler_resumes_after_its_last_recorded_step(declare: Declare, points: Failpoints) -> None:
    ran: list[str] = []

    async def body(name: str) -> str:
        ran.append(name)
        return name

    async def handler(ctx: api.AsyncContext, given: Any) -> list[str]:
        return [await ctx.step(name, body, name) for name in ("one", "two")]

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    points.crash_at(failpoints.STEP_AFTER)
    with pytest.raises(Crash):
        deliver("t")
    run_after_a_death()

    assert ran == ["one", "two"]
    assert settled(receipt).result == ["one", "two"]
    sound()


def test_a_coroutine_handler_may_use_the_async_orm(declare: Declare) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> int:
        return await Submission.objects.filter(thread_id=ctx.thread_id).acount()

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    run()
    assert settled(receipt).result == 1


def test_a_coroutine_handler_that_raises_fails_its_submission(declare: Declare) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> None:
        await asyncio.sleep(0)
        raise api.AgentFailure("no", tag="No")

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    run()
    failure = settled(receipt).failure
    assert failure is not None
    assert (failure.error_tag, failure.message) == ("No", "no")


def test_a_coroutine_handler_that_cancels_itself_has_failed(declare: Declare) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> None:
        raise asyncio.CancelledError

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    run()
    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "HandlerCancelled"


def test_a_coroutine_handler_yields_at_its_next_step(declare: Declare) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> int:
        if ctx.attempt == 1:
            drain.request()
        return int(await ctx.step("one", lambda: 1))

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    deliver("t")
    drain.reset()
    assert endings() == ["yielded"]
    run_after_a_death()
    assert settled(receipt).result == 1


def test_a_coroutine_handler_that_waits_past_the_deadline_is_cancelled(declare: Declare) -> None:
    """Before the lease is given back, the body has really stopped."""
    stopped: list[str] = []

    async def handler(ctx: api.AsyncContext, given: Any) -> str:
        if ctx.attempt > 1:
            return "in time"
        work = ctx._attempt.work
        assert isinstance(work, PassWork)
        work.deadline = 0.0
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("stopped")
        return "never"

    declare("async", handler)
    receipt = api.submit("t", "async", None)

    assert deliver("t").outcome is Outcome.INTERRUPTED
    assert stopped == ["stopped"]
    assert endings() == ["interrupted"]
    run_after_a_death()
    assert settled(receipt).result == "in time"


def test_a_coroutine_handler_that_lost_its_lease_records_nothing(declare: Declare) -> None:
    async def handler(ctx: api.AsyncContext, given: Any) -> Any:
        if ctx.attempt == 1:
            elsewhere(take_over)
        return await ctx.step("one", lambda: ctx.attempt)

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    assert deliver("t").outcome is Outcome.LEASE_LOST
    assert settled(receipt).result == 2
    sound()


def take_over() -> None:
    travel(LEASE)
    assert deliver("t").outcome is Outcome.RAN
    asynchronous.stop()


def test_a_pass_may_run_inside_asynchronous_code(declare: Declare) -> None:
    """As it does in a test of a project whose tests are coroutines."""

    async def handler(ctx: api.AsyncContext, given: Any) -> Any:
        return await ctx.step("one", lambda: given)

    declare("async", handler)
    receipt = api.submit("t", "async", 5)

    def run_and_stop() -> None:
        run()
        asynchronous.stop()
        connections.close_all()

    asyncio.run(sync_to_async(run_and_stop)())
    assert settled(receipt).result == 5


def test_a_task_that_a_handler_leaves_behind_is_ended_with_it(declare: Declare) -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    async def handler(ctx: api.AsyncContext, given: Any) -> str:
        task = asyncio.ensure_future(background())
        await asyncio.sleep(0)
        return str(task.done())

    declare("async", handler)
    receipt = api.submit("t", "async", None)
    run()
    assert settled(receipt).result == "False"
    assert ended == ["background"]
