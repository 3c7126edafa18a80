"""Tool calls of plain handlers (ledger-recovery, g; scenarios L; field reports M): recorded before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from agents import api, events, failpoints, tools
from agents.models import Submission
from maintenance import drain
from maintenance.delivery import Outcome
from maintenance.errors import PassInterrupted
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, endings, families, log, run, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, outcome_of, submit, world

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database


AROUND_A_CALL = [name for name in failpoints.ALL if name.startswith("tools:")]
NEVER_RAN = {failpoints.TOOL_BEFORE, failpoints.TOOL_PREPARING, failpoints.TOOL_PREPARED}
NOTHING_COMMITTED = {failpoints.TOOL_BEFORE, failpoints.TOOL_PREPARING}


def test_146_a_call_is_recorded_before_and_after_it_runs(declare: Declare, world: World) -> None:
    world.tool("charge")
    found = outcome_of(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))

    assert found.result == "charge 5"
    assert families() == ["thread-created", "user-input", "tool-prepared", "tool-settled", "submission-settled"]
    prepared, ended = log()[2:4]
    assert prepared.record_id == f"tool-prepared:run:{found.submission_id}:0:1:charge"
    assert prepared.payload["arguments"] == {"amount": 5}
    assert (prepared.payload["tool"], prepared.payload["kind"]) == ("charge", "ordinary")
    assert ended.payload["result"] == "charge 5"
    assert (ended.payload["is_failure"], ended.payload["by"]) == (False, "handler")
    assert call_rows() == [("charge", "settled", 1)]


def test_the_prepared_record_is_committed_before_the_tool_runs(declare: Declare, world: World) -> None:
    seen: list[list[str]] = []
    world.tool("charge", does=lambda: seen.append(families()))
    outcome_of(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    assert seen == [["thread-created", "user-input", "tool-prepared"]]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", AROUND_A_CALL)
def test_m1_an_ordinary_tool_never_runs_twice_wherever_the_crash_comes(
    declare: Declare, world: World, points: Failpoints, name: str
) -> None:
    """Before the prepared record it runs once later; between the records it is unknown; after them it is replayed."""
    world.tool("charge")
    receipt = submit(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))

    crash(points, name)
    run_after_a_death()

    if name in NOTHING_COMMITTED or name == failpoints.TOOL_SETTLED:
        assert settled(receipt).result == "charge 5"
        assert world.counts["charge"] == 1
        sound()
    else:
        assert Submission.objects.get().state == "unknown"
        assert call_rows() == [("charge", "unknown", 1)]
        assert world.counts["charge"] == (0 if name in NEVER_RAN else 1)
        sound(all_settled=False)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("kind", ["idempotent", "stepped"])
@pytest.mark.parametrize("name", AROUND_A_CALL)
def test_150_a_call_that_may_be_repeated_runs_again_by_itself_as_the_same_try(
    declare: Declare, world: World, points: Failpoints, name: str, kind: Any
) -> None:
    @api.tool("put", kind=kind)
    def put(*ctx: Any, amount: int) -> str:
        world.did.append("put")
        return f"put {amount}"

    receipt = submit(declare, lambda ctx, _: ctx.call_tool("put", amount=5))
    crash(points, name)
    run_after_a_death()

    assert settled(receipt).result == "put 5"
    assert world.counts["put"] == (1 if name in {*NEVER_RAN, failpoints.TOOL_SETTLED} else 2)
    assert call_rows() == [("put", "settled", 1)]
    assert families().count("tool-prepared") == families().count("tool-settled") == 1
    assert "tool-unknown" not in families()
    sound()


def test_f6_an_idempotent_call_is_run_again_under_the_same_key_and_no_reconciler_is_asked(
    declare: Declare, world: World, points: Failpoints
) -> None:
    world.tool("put", kind="idempotent")
    submit(declare, lambda ctx, _: ctx.call_tool("put", amount=5))
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()
    first, second = world.keys
    assert first == second


def test_f6_the_kind_that_was_recorded_decides_not_the_one_that_is_declared_now(
    declare: Declare, world: World, points: Failpoints
) -> None:
    """A release that calls the tool ordinary finds an open call that was made under the promise of idempotence."""
    world.tool("put", kind="idempotent")
    receipt = submit(declare, lambda ctx, _: ctx.call_tool("put", amount=5))
    crash(points, failpoints.TOOL_RAN)
    tools.unregister("put")
    world.tool("put", kind="ordinary")
    run_after_a_death()
    assert settled(receipt).result == "put 5"

    world.tool("charge")
    declare("other", lambda ctx, _: ctx.call_tool("charge", amount=5))
    api.submit("t", "other", None)
    crash(points, failpoints.TOOL_RAN)
    tools.unregister("charge")
    world.tool("charge", kind="idempotent")
    run_after_a_death()
    assert world.counts["charge"] == 1
    assert call_rows()[-1] == ("charge", "unknown", 1)


def test_every_call_has_a_key_of_its_own_and_keeps_it(declare: Declare, world: World) -> None:
    world.tool("put", kind="idempotent")
    found = outcome_of(declare, lambda ctx, _: [ctx.call_tool("put", amount=n) for n in range(2)])
    assert len(set(world.keys)) == 2
    assert world.keys[0] == tools.key_of(found.submission_id, 0, "put")
    assert [record.payload["arguments"] for record in log() if record.family == "tool-prepared"] == [
        {"amount": 0},
        {"amount": 1},
    ]


def test_the_calls_of_a_tool_are_told_apart_by_their_turn_or_their_name(declare: Declare, world: World) -> None:
    world.tool("charge")

    def handler(ctx: api.Context, given: Any) -> None:
        ctx.call_tool("charge", amount=1)
        ctx.call_tool("charge", amount=2, name="tip")
        ctx.call_tool("charge", amount=3)

    outcome_of(declare, handler)
    assert [call for call, _, _ in call_rows()] == ["charge", "tip", "charge 2"]


def test_f8_a_name_used_twice_in_one_run_is_refused_and_not_taken_for_a_result(declare: Declare, world: World) -> None:
    world.tool("charge")

    def handler(ctx: api.Context, given: Any) -> None:
        for amount in (1, 2):
            ctx.call_tool("charge", amount=amount, name="same")

    found = outcome_of(declare, handler)
    assert found.failure is not None
    assert found.failure.error_tag == "StepError"
    assert "call 'same' was used twice" in found.failure.message
    assert world.counts["charge"] == 1


def test_f8_the_same_name_in_another_submission_is_another_call(declare: Declare, world: World) -> None:
    world.tool("charge")
    declare("buyer", lambda ctx, given: ctx.call_tool("charge", amount=given))
    receipts = [api.submit("t", "buyer", amount) for amount in (1, 2)]
    run()
    assert [settled(receipt).result for receipt in receipts] == ["charge 1", "charge 2"]
    assert len(set(world.keys)) == 2


def test_a_replay_that_asks_for_something_else_under_the_same_name_is_refused(
    declare: Declare, world: World, points: Failpoints
) -> None:
    """A result stands for what was asked: another amount has none, and nothing is charged again."""
    world.tool("charge")
    receipt = submit(declare, lambda ctx, _: ctx.call_tool("charge", amount=ctx.attempt))
    crash(points, failpoints.TOOL_SETTLED)
    run_after_a_death()

    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "CallRefused"
    assert "recorded as one of tool 'charge' with other arguments" in failure.message
    assert world.counts["charge"] == 1


def test_f11_a_call_that_the_run_does_not_come_back_to_is_recorded_as_unknown_when_it_settles(
    declare: Declare, world: World, points: Failpoints
) -> None:
    """A prepared call never stays open under a settled submission without a word."""
    world.tool("put", kind="idempotent")

    def handler(ctx: api.Context, given: Any) -> str:
        if ctx.attempt == 1:
            ctx.call_tool("put", amount=5)
        return "forgot it"

    receipt = submit(declare, handler)
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()

    assert settled(receipt).result == "forgot it"
    assert families()[-2:] == ["tool-unknown", "submission-settled"]
    assert call_rows() == [("put", "unknown", 1)]
    sound()


def test_f11_work_that_used_up_its_attempts_in_a_repeatable_call_says_that_its_effect_is_unknown(
    declare: Declare, world: World, settings: Settings
) -> None:
    settings.AGENTS = {"RETRY_BUDGET": 2}

    def die() -> None:
        raise Crash("t")

    world.tool("put", does=die, kind="idempotent")
    receipt = submit(declare, lambda ctx, _: ctx.call_tool("put", amount=5))
    for _ in range(2):
        with pytest.raises(Crash):
            deliver("t")
        travel(LEASE)
    run()

    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "AttemptsExhausted"
    assert world.counts["put"] == 2
    assert families()[-3:] == ["repair-annotated", "tool-unknown", "submission-settled"]
    sound()


def test_an_attempt_yields_before_a_call_and_never_within_one(declare: Declare, world: World) -> None:
    world.tool("first", does=drain.request)
    world.tool("second")
    receipt = submit(declare, lambda ctx, _: [ctx.call_tool(name, amount=5) for name in ("first", "second")])

    assert deliver("t").outcome is Outcome.RAN
    assert call_rows() == [("first", "settled", 1)]
    assert endings() == ["yielded"]
    drain.reset()
    run_after_a_death()

    assert settled(receipt).result == [None, "second 5"]
    assert world.did == ["first", "second"]


@pytest.mark.parametrize("stop", [SoftTimeLimitExceeded(), PassInterrupted("lease lost")])
def test_an_interruption_leaves_the_call_open_and_settles_nothing_even_if_it_is_swallowed(
    declare: Declare, world: World, stop: BaseException
) -> None:
    def cut() -> None:
        raise stop

    world.tool("charge", does=cut)

    def handler(ctx: api.Context, given: Any) -> str:
        try:
            ctx.call_tool("charge", amount=5)
        except BaseException:  # noqa: BLE001 - the worst a handler can do
            return "swallowed"
        return "done"

    submit(declare, handler)
    assert deliver("t").outcome is Outcome.INTERRUPTED
    assert call_rows() == [("charge", "prepared", 1)]
    run_after_a_death()

    assert call_rows() == [("charge", "unknown", 1)]
    assert Submission.objects.get().state == "unknown"
    assert world.counts["charge"] == 1


def test_78_a_pass_that_lost_its_thread_while_the_tool_ran_records_no_result(declare: Declare, world: World) -> None:
    """L3 and L5: whoever took over has shown the call to a person; the late result is refused, nothing runs twice."""

    def take_over() -> str:
        travel(LEASE)
        assert deliver("t").outcome is Outcome.RAN
        return "too late"

    world.tool("charge", does=take_over)
    submit(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))

    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert world.counts["charge"] == 1
    assert call_rows() == [("charge", "unknown", 1)]
    assert families() == ["thread-created", "user-input", "tool-prepared", "tool-unknown", "repair-annotated"]
    run()
    sound(all_settled=False)


def test_arguments_and_result_have_been_through_json_on_every_run(
    declare: Declare, world: World, points: Failpoints
) -> None:
    seen: list[Any] = []

    @api.tool("put", kind="idempotent")
    def put(pair: Any) -> Any:
        seen.append(pair)
        return {"pair": (1, 2)}

    receipt = submit(declare, lambda ctx, _: ctx.call_tool("put", pair=(1, 2)))
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()
    assert seen == [[1, 2], [1, 2]]
    assert settled(receipt).result == {"pair": [1, 2]}


def test_m5_effects_before_and_between_waits_happen_once(declare: Declare, world: World, points: Failpoints) -> None:
    for name in "abc":
        world.tool(name)

    def handler(ctx: api.Context, given: Any) -> None:
        ctx.call_tool("a", amount=1)
        ctx.wait_event("one")
        ctx.call_tool("b", amount=1)
        ctx.sleep(0)
        ctx.wait_event("two")
        ctx.call_tool("c", amount=1)

    receipt = submit(declare, handler)
    run()
    events.send("t", "one", None, key="1")
    crash(points, failpoints.TOOL_SETTLED)
    run_after_a_death()
    events.send("t", "two", None, key="2")
    run()

    assert settled(receipt).outcome == "completed"
    assert world.did == ["a", "b", "c"]
    sound()
