"""Tool calls that cannot be made or recorded, and those beyond the budget: nothing runs (ledger-recovery, g.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from agents import api, failpoints
from agents.models import ToolCall
from tests.agents_kit import agents_database, families, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, outcome_of, submit, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database


def refusal(declare: Declare, handler: Callable[[api.Context, Any], Any]) -> tuple[str, str]:
    """The tag and text with which a call is refused; nothing was recorded of it."""
    found = outcome_of(declare, handler)
    assert found.failure is not None
    assert families() == ["thread-created", "user-input", "submission-settled"]
    assert call_rows() == []
    return found.failure.error_tag, found.failure.message


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
