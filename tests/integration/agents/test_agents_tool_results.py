"""What a tool call comes to: a result, a failure, or a later try (ledger-recovery, g.6)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db.models import F

from agents import api, failpoints
from agents.errors import RetryLater, StepError
from agents.models import LogRecord, Submission
from maintenance.testing import deliver, travel
from tests.agents_kit import agents_database, log, run, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, outcome_of, submit, world

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database


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
