"""Unknown outcomes are marked and shown (ledger-recovery, f.2; scenarios L 151-157, T)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from agents import aborts, api, failpoints, registry
from agents.models import Submission, ToolCall
from maintenance.delivery import Outcome
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, endings, families, log, run, run_after_a_death, settled, sound
from tests.factories import row_of
from tests.tools_kit import World, call_rows, crash, world
from tests.unknown_kit import SideBySide, call_one, come_to_rest, pair, resolve, state, tool_records, unknown

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["pair", "unknown", "world"]

pytestmark = agents_database


# --- marking


def test_151_an_open_call_of_an_ordinary_tool_is_shown_to_a_person(unknown: api.Receipt, world: World) -> None:
    assert world.counts["charge"] == 1
    assert call_rows() == [("charge", "unknown", 1)]
    assert families()[2:] == ["tool-prepared", "tool-unknown", "repair-annotated"]
    assert log()[3].payload["reason"] == "the attempt that made the call ended without recording a result"
    assert endings() == [""]
    sound(all_settled=False)


def test_157_an_unknown_call_is_a_stable_wait_that_no_pass_disturbs(unknown: api.Receipt, world: World) -> None:
    row = row_of()
    assert (row.alarm_at, row.is_dirty) == (None, False)
    before = families()

    deliver("t", forced=True)

    assert families() == before
    assert world.counts["charge"] == 1
    assert state() == "unknown"


def test_work_behind_an_unknown_call_waits_and_runs_after_it(unknown: api.Receipt, echo: str) -> None:
    follower = api.submit("t", echo, 1)
    run()
    assert api.settlement(follower) is None
    assert row_of().alarm_at is None

    resolve(unknown, "never-started")
    run()

    assert settled(follower).result == 1
    sound()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", [failpoints.UNKNOWN_BEFORE, failpoints.UNKNOWN_WRITTEN, failpoints.UNKNOWN_AFTER])
def test_f4_call_record_and_state_are_marked_in_one_commit(
    declare: Declare, world: World, points: Failpoints, name: str
) -> None:
    call_one(declare, world)
    crash(points, failpoints.TOOL_RAN)
    travel(LEASE)
    crash(points, name)

    marked = name == failpoints.UNKNOWN_AFTER
    assert (state(), call_rows()[0][1], "tool-unknown" in families()) == (
        ("unknown", "unknown", True) if marked else ("input_applied", "prepared", False)
    )
    run_after_a_death()
    assert state() == "unknown"
    assert families().count("tool-unknown") == 1
    assert world.counts["charge"] == 1
    sound(all_settled=False)


def test_f4_a_mark_without_a_call_is_cleared_and_the_run_goes_on(declare: Declare, points: Failpoints) -> None:
    """Nothing open, nothing unknown: one repair, not one on every pass. Only a hand can make such a row."""
    declare("stepping", lambda ctx, _: ctx.step("one", lambda: 1))
    receipt = api.submit("t", "stepping", None)
    crash(points, failpoints.STEP_AFTER)
    Submission.objects.update(state="unknown")
    run_after_a_death()
    assert settled(receipt).result == 1
    assert families().count("repair-annotated") == 1


def test_284_f4_a_pass_that_lost_its_thread_marks_nothing(declare: Declare, world: World, points: Failpoints) -> None:
    """The fence: a stale mark would block a run that has gone on."""
    world.tool("charge")
    declare("buyer", lambda ctx, _: [ctx.call_tool("charge", amount=5), ctx.step("after", lambda: 1)])
    receipt = api.submit("t", "buyer", None)
    crash(points, failpoints.TOOL_RAN)
    travel(LEASE)

    def go_on_elsewhere(thread_id: str) -> None:
        travel(LEASE)
        deliver(thread_id)
        resolve(receipt, "completed-with-result")
        crash(points, failpoints.STEP_BEFORE)

    points.arm(failpoints.UNKNOWN_BEFORE, go_on_elsewhere)
    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert (state(), call_rows()) == ("input_applied", [("charge", "settled", 1)])
    run_after_a_death()
    assert settled(receipt).result == [{"charged": 5}, 1]
    assert families().count("tool-unknown") == 1
    sound()


@pytest.mark.parametrize("kind", ["ordinary", "idempotent"])
def test_288_f10_the_abort_of_a_call_that_runs_says_that_its_effect_is_unknown(
    declare: Declare, world: World, settings: Settings, kind: Any
) -> None:
    settings.AGENTS = {"ABORT_POLL_MS": 5}

    @api.tool("endless", kind=kind)
    async def endless() -> None:
        world.did.append("endless")
        await sync_to_async(aborts.abort)(receipt.submission_id, author="ann", reason="enough")
        await asyncio.Event().wait()

    async def handler(ctx: api.AsyncContext, given: Any) -> None:
        await ctx.call_tool("endless")

    declare("patient", handler)
    receipt = api.submit("t", "patient", None)
    run()

    assert settled(receipt).outcome == "aborted"
    assert tool_records() == [("tool-prepared", "endless", 1), ("tool-unknown", "endless", 1)]
    assert world.counts["endless"] == 1
    sound()


# --- a tool that cannot tell


def no_answer() -> None:
    raise api.OutcomeUnknown("the request was sent, no answer came")


def test_an_ordinary_tool_that_cannot_tell_is_shown_to_a_person_at_once(declare: Declare, world: World) -> None:
    call_one(declare, world, does=no_answer)
    run()
    assert state() == "unknown"
    assert endings() == ["suspended"]
    assert log()[3].payload["reason"] == "the request was sent, no answer came"
    assert ToolCall.objects.get().unknown_reason == "the request was sent, no answer came"
    come_to_rest()
    assert row_of().alarm_at is None
    assert world.counts["charge"] == 1


@pytest.mark.parametrize("name", [failpoints.UNKNOWN_BEFORE, failpoints.UNKNOWN_WRITTEN, failpoints.UNKNOWN_AFTER])
def test_a_crash_while_a_tool_says_that_it_cannot_tell_marks_it_once(
    declare: Declare, world: World, points: Failpoints, name: str
) -> None:
    call_one(declare, world, does=no_answer)
    crash(points, name)
    run_after_a_death()
    assert state() == "unknown"
    assert tool_records() == [("tool-prepared", "charge", 1), ("tool-unknown", "charge", 1)]
    assert world.counts["charge"] == 1


def test_a_handler_cannot_settle_over_a_call_that_became_unknown(declare: Declare, world: World) -> None:
    world.tool("charge", does=no_answer)

    def handler(ctx: api.Context, given: Any) -> str:
        try:
            ctx.call_tool("charge", amount=5)
        except BaseException:  # noqa: BLE001 - the worst a handler can do
            return "swallowed"
        return "done"

    declare("buyer", handler)
    receipt = api.submit("t", "buyer", None)
    run()
    assert api.settlement(receipt) is None
    assert state() == "unknown"


def test_an_idempotent_tool_that_cannot_tell_is_run_again_under_its_key(declare: Declare, world: World) -> None:
    def second_time() -> str:
        if world.counts["put"] == 1:
            no_answer()
        return "put"

    receipt = call_one(declare, world, "put", does=second_time, kind="idempotent")
    assert deliver("t").outcome is Outcome.FAILED
    run_after_a_death()
    assert settled(receipt).result == "put"
    assert endings() == ["failed", "settled"]
    assert len(set(world.keys)) == 1


def test_a_reconciled_tool_that_cannot_tell_is_looked_up(declare: Declare, world: World) -> None:
    receipt = call_one(declare, world, does=no_answer, reconcile=lambda _: api.Done("found"))
    deliver("t")
    run_after_a_death()
    assert settled(receipt).result == "found"
    assert world.counts["charge"] == 1


# --- several calls


def test_153_two_unknown_calls_get_an_answer_each(pair: SideBySide, world: World) -> None:
    receipt = pair.open()
    run()
    assert call_rows() == [("one", "unknown", 1), ("two", "unknown", 1)]

    resolve(receipt, "completed-with-result", "one", result="by ann")
    run()
    assert state() == "unknown", "155: a partial answer keeps the queue waiting"
    resolve(receipt, "never-started", "two")
    run()

    assert settled(receipt).result == ["by ann", "two again"]
    assert world.counts == {"one": 1, "two": 2}
    sound()


def test_154_one_call_is_looked_up_and_the_other_shown(pair: SideBySide, world: World) -> None:
    receipt = pair.open(one={"reconcile": lambda _: api.Done("found")})
    run()
    assert call_rows() == [("one", "settled", 1), ("two", "unknown", 1)]
    resolve(receipt, "completed-with-result", "two", result="by ann")
    run()
    assert settled(receipt).result == ["found", "by ann"]
    assert world.counts == {"one": 1, "two": 1}


def test_f46_a_call_that_becomes_unknown_later_has_a_record_of_its_own(pair: SideBySide, world: World) -> None:
    """302: call one is uncertain, two may be repeated; after one is resolved, two dies again and nobody can tell."""
    answers = [api.SafeRetry(), api.StillUnknown("now nobody can tell")]
    receipt = pair.open(two={"reconcile": lambda _: answers.pop(0)})
    run()
    assert call_rows() == [("one", "unknown", 1), ("two", "permitted", 1)]
    resolve(receipt, "completed-with-result", "one", result="by ann")
    pair_dies_again_in_two(pair)
    run_after_a_death()

    assert call_rows() == [("one", "settled", 1), ("two", "unknown", 2)]
    assert [entry for entry in tool_records() if entry[0] == "tool-unknown"] == [
        ("tool-unknown", "one", 1),
        ("tool-unknown", "two", 2),
    ]
    resolve(receipt, "completed-with-result", "two", result="by ann too")
    run()
    assert settled(receipt).result == ["by ann", "by ann too"]
    sound()


def pair_dies_again_in_two(pair: SideBySide) -> None:
    """The process dies once more, while the only call that still runs is `two`."""

    async def handler(ctx: api.AsyncContext, given: Any) -> list[Any]:
        pair.both, pair.dies = asyncio.Barrier(1), ctx.attempt == 2
        return list(await asyncio.gather(ctx.call_tool("one"), ctx.call_tool("two")))

    registry.unregister("pair")
    pair.declare("pair", handler)
    with pytest.raises(Crash):
        deliver("t")


def test_an_open_call_found_beside_an_unknown_one_is_looked_at_too(pair: SideBySide, points: Failpoints) -> None:
    """One rule of coverage: nothing goes on while any call is open, marked or not."""
    asked: list[str] = []

    def answers(call: api.OpenCall) -> Any:
        asked.append(call.call)
        if len(asked) == 1:
            raise Crash("t")
        return api.StillUnknown()

    receipt = pair.open(two={"reconcile": answers})
    with pytest.raises(Crash):
        deliver("t")
    ToolCall.objects.filter(call="one").update(status="unknown")
    Submission.objects.update(state="unknown")
    run_after_a_death()
    assert call_rows() == [("one", "unknown", 1), ("two", "unknown", 1)]
    assert state() == "unknown"
    del receipt
