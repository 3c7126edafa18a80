"""Tool calls of plain handlers (ledger-recovery, g; scenarios L; field reports M): recorded before and after."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import transaction
from django.db.models import F

from agents import api, events, failpoints, tools
from agents.errors import RetryLater, StepError
from agents.models import LogRecord, Submission, ToolCall
from maintenance import drain
from maintenance.delivery import Outcome
from maintenance.errors import PassInterrupted
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, endings, families, log, run, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

AROUND_A_CALL = [name for name in failpoints.ALL if name.startswith("tools:")]
NEVER_RAN = {failpoints.TOOL_BEFORE, failpoints.TOOL_PREPARING, failpoints.TOOL_PREPARED}
NOTHING_COMMITTED = {failpoints.TOOL_BEFORE, failpoints.TOOL_PREPARING}


def submit(declare: Declare, handler: Callable[[api.Context, Any], Any]) -> api.Receipt:
    declare("buyer", handler)
    return api.submit("t", "buyer", None)


def outcome_of(declare: Declare, handler: Callable[[api.Context, Any], Any]) -> api.Settlement:
    """What one submission to this handler comes to."""
    receipt = submit(declare, handler)
    run()
    sound()
    return settled(receipt)


def refusal(declare: Declare, handler: Callable[[api.Context, Any], Any]) -> tuple[str, str]:
    """The tag and text with which a call is refused; nothing was recorded of it."""
    found = outcome_of(declare, handler)
    assert found.failure is not None
    assert families() == ["thread-created", "user-input", "submission-settled"]
    assert call_rows() == []
    return found.failure.error_tag, found.failure.message


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


def declined() -> None:
    raise api.ToolFailure("the card was declined", tag="CardDeclined")


def test_a_declared_failure_reaches_the_handler_the_same_live_and_on_a_replay(
    declare: Declare, world: World, points: Failpoints
) -> None:
    world.tool("charge", does=declined)
    seen: list[tuple[str, str, str, str]] = []

    def handler(ctx: api.Context, given: Any) -> str:
        try:
            ctx.call_tool("charge", amount=5)
        except api.ToolFailed as failed:
            seen.append((failed.tag, failed.reason, failed.call, failed.message))
        return str(ctx.step("after", lambda: "went on"))

    receipt = submit(declare, handler)
    crash(points, failpoints.STEP_AFTER)
    run_after_a_death()

    assert settled(receipt).result == "went on"
    assert world.counts["charge"] == 1
    live, replayed = seen
    assert live == replayed
    assert live[:3] == ("CardDeclined", "the card was declined", "charge")
    assert [record.payload["is_failure"] for record in log() if record.family == "tool-settled"] == [True]


def test_a_failure_that_the_handler_lets_through_fails_the_submission_with_its_text(
    declare: Declare, world: World
) -> None:
    world.tool("charge", does=declined)
    found = outcome_of(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    assert found.failure is not None
    assert found.failure.error_tag == "ToolFailed"
    assert found.failure.message == "call 'charge' of tool 'charge' failed: the card was declined"


def test_any_other_exception_proves_that_the_call_ended_and_its_text_is_kept_out(
    declare: Declare, world: World, points: Failpoints
) -> None:
    def leak() -> None:
        raise ValueError("password=hunter2")

    world.tool("charge", does=leak)
    receipt = submit(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    crash(points, failpoints.TOOL_SETTLED)
    run_after_a_death()

    assert world.counts["charge"] == 1
    recorded = log()[3].payload["result"]
    assert recorded["error_tag"] == "ValueError"
    assert settled(receipt).outcome == "failed"
    assert not LogRecord.objects.filter(text__contains="hunter2").exists()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (object(), "the tool ran, but its result is not JSON: a value of type object has no JSON form"),
        ("x" * 9, "the tool ran, but its result has 11 bytes; at most 10 are allowed"),
    ],
)
def test_a_result_that_cannot_be_recorded_is_a_failure_of_a_call_that_happened(
    declare: Declare, world: World, points: Failpoints, output: Any, said: str
) -> None:
    world.tool("charge", does=lambda: output, max_result_bytes=10)
    receipt = submit(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    crash(points, failpoints.TOOL_SETTLED)
    run_after_a_death()

    assert world.counts["charge"] == 1
    failure = settled(receipt).failure
    assert failure is not None
    assert said in failure.message
    assert log()[3].payload["result"] == {"error_tag": "ToolResultError", "message": said}


def test_the_size_of_a_result_has_a_default(declare: Declare, world: World, settings: Settings) -> None:
    settings.AGENTS = {"MAX_STEP_RESULT_BYTES": 10}
    world.tool("charge", does=lambda: "x" * 9)
    found = outcome_of(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    assert found.failure is not None
    assert "has 11 bytes" in found.failure.message


def test_a_coroutine_from_a_plain_tool_is_a_failure_of_the_call(declare: Declare, world: World) -> None:
    async def later() -> None: ...

    world.tool("charge", does=later)
    found = outcome_of(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    assert found.failure is not None
    assert "the tool gave a coroutine" in found.failure.message


def test_an_unknown_tool_is_refused_with_names_that_look_alike(declare: Declare, world: World) -> None:
    world.tool("charge")
    tag, message = refusal(declare, lambda ctx, _: ctx.call_tool("chrage", amount=5))
    assert (tag, message) == ("UnknownTool", "no tool named 'chrage' is declared; did you mean 'charge'?")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"amount": object()}, "an argument of tool 'charge' is not JSON: a value of type object has no JSON form"),
        (
            {"amount": 5, "amuont": 5},
            "tool 'charge' cannot be called like that: got an unexpected keyword argument 'amuont'",
        ),
        ({}, "tool 'charge' cannot be called like that: missing a required argument: 'amount'"),
        ({"amount": "x" * 99}, "the arguments of tool 'charge' have 112 bytes; at most 50 are allowed"),
    ],
)
def test_arguments_that_cannot_be_recorded_or_taken_are_refused_before_anything_is_written(
    declare: Declare, world: World, settings: Settings, arguments: dict[str, Any], said: str
) -> None:
    settings.AGENTS = {"MAX_INPUT_BYTES": 50}
    world.tool("charge")
    tag, message = refusal(declare, lambda ctx, _: ctx.call_tool("charge", arguments))
    assert tag == "CallRefused"
    assert said in message
    assert world.did == []


def test_a_coroutine_function_is_refused_in_a_plain_handler(declare: Declare, world: World) -> None:
    async def later() -> None: ...

    tag, message = refusal(declare, lambda ctx, _: ctx.call_tool(later))
    assert tag == "CallRefused"
    assert "only an `async def` handler" in message


def test_a_call_inside_the_handlers_own_transaction_is_refused(declare: Declare, world: World) -> None:
    world.tool("charge")

    def handler(ctx: api.Context, given: Any) -> None:
        with transaction.atomic():
            ctx.call_tool("charge", amount=5)

    tag, message = refusal(declare, handler)
    assert tag == "StepError"
    assert "call 'charge' was used inside transaction.atomic()" in message
    assert world.did == []


def test_arguments_with_the_names_of_options_go_into_the_mapping(declare: Declare, world: World) -> None:
    @api.tool("invite")
    def invite(name: str, approval: bool, at: str) -> list[Any]:
        return [name, approval, at]

    found = outcome_of(
        declare, lambda ctx, _: ctx.call_tool("invite", {"name": "ann", "approval": False}, at="noon", name="first")
    )
    assert found.result == ["ann", False, "noon"]
    assert [call for call, _, _ in call_rows()] == ["first"]


def refund(amount: int) -> int:
    return -amount


def test_a_function_that_nobody_declared_is_an_ordinary_tool(declare: Declare, world: World) -> None:
    found = outcome_of(
        declare,
        lambda ctx, _: [ctx.call_tool(refund, amount=1), ctx.call_tool(lambda amount: amount, amount=2, name="plain")],
    )
    assert found.result == [-1, 2]
    assert list(ToolCall.objects.order_by("pk").values_list("tool", "kind")) == [
        ("refund", "ordinary"),
        ("plain", "ordinary"),
    ]


def test_a_declared_function_is_the_tool_that_it_is_declared_as(declare: Declare, world: World) -> None:
    api.tool("money-back", kind="idempotent")(refund)
    outcome_of(declare, lambda ctx, _: ctx.call_tool(refund, amount=1))
    row = ToolCall.objects.get()
    assert (row.tool, row.kind, row.call) == ("money-back", "idempotent", "money-back")


def test_a_function_without_a_name_is_refused(declare: Declare, world: World) -> None:
    tag, message = refusal(declare, lambda ctx, _: ctx.call_tool(lambda: 1))
    assert tag == "CallRefused"
    assert "needs `name=`" in message


def test_f13_the_budget_of_calls_is_counted_from_the_log_and_no_restart_refills_it(
    declare: Declare, world: World, points: Failpoints, settings: Settings
) -> None:
    settings.AGENTS = {"MAX_TOOL_CALLS": 3}
    world.tool("charge")
    receipt = submit(declare, lambda ctx, _: [ctx.call_tool("charge", amount=n) for n in range(4)])

    crash(points, failpoints.TOOL_SETTLED)
    run_after_a_death()

    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "BudgetExhausted"
    assert failure.message == "the run has made 3 tool calls; at most 3 are allowed"
    assert world.counts["charge"] == 3
    assert families().count("tool-prepared") == 3
    sound()


def test_a_handler_may_catch_the_end_of_its_budget(declare: Declare, world: World, settings: Settings) -> None:
    settings.AGENTS = {"MAX_TOOL_CALLS": 1}
    world.tool("charge")

    def handler(ctx: api.Context, given: Any) -> str:
        ctx.call_tool("charge", amount=1)
        try:
            ctx.call_tool("charge", amount=2)
        except api.BudgetExhausted:
            return "enough"
        return "more"

    assert outcome_of(declare, handler).result == "enough"


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


def test_a_tool_that_asks_for_a_later_try_had_no_effect_and_is_tried_again_then(declare: Declare, world: World) -> None:
    """The other side said 'not now': the try is closed as never started, and nothing claims earlier."""

    def busy_once() -> str:
        if world.counts["charge"] == 1:
            raise RetryLater("too many requests", after=600)
        return "charged"

    world.tool("charge", does=busy_once)
    receipt = submit(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    run()
    deliver("t", forced=True)

    assert world.counts["charge"] == 1
    assert Submission.objects.get().state == "suspended"
    assert call_rows() == [("charge", "permitted", 1)]
    travel_to_the_retry()
    run()

    assert settled(receipt).result == "charged"
    assert world.counts["charge"] == 2
    assert len(set(world.keys)) == 1
    assert [(record.family, record.payload["tries"]) for record in log() if record.family.startswith("tool")] == [
        ("tool-prepared", 1),
        ("tool-resolved", 1),
        ("tool-prepared", 2),
        ("tool-settled", 2),
    ]
    sound()


def travel_to_the_retry() -> None:
    Submission.objects.update(wake_at=F("wake_at") - timedelta(seconds=721))
    travel(timedelta(seconds=721))


def test_a_step_error_inside_a_tool_is_the_failure_of_its_call(declare: Declare, world: World) -> None:
    def wrong() -> None:
        raise StepError("used twice")

    world.tool("charge", does=wrong)
    found = outcome_of(declare, lambda ctx, _: ctx.call_tool("charge", amount=5))
    assert found.failure is not None
    assert found.failure.message == "call 'charge' of tool 'charge' failed: used twice"
