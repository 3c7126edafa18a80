"""Open calls whose tools have a reconciler are looked up (ledger-recovery, g.4; scenarios L 154 and 163)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from agents import api, failpoints, tools
from agents.models import LogRecord
from maintenance.delivery import Outcome
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, families, log, run, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, world
from tests.unknown_kit import call_one, state, tool_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database


def open_reconciled(declare: Declare, world: World, points: Failpoints, answers: Callable[[Any], Any]) -> api.Receipt:
    """A call of a reconciled tool had its effect, and its process died."""
    receipt = call_one(declare, world, reconcile=answers)
    crash(points, failpoints.TOOL_RAN)
    travel(LEASE)
    return receipt


def test_154_what_a_reconciler_found_is_the_result(declare: Declare, world: World, points: Failpoints) -> None:
    receipt = open_reconciled(declare, world, points, lambda _: api.Done({"charged": 5}))
    run()

    assert settled(receipt).result == {"charged": 5}
    assert world.counts["charge"] == 1
    ended, resolved = log()[3:5]
    assert (ended.payload["by"], resolved.payload["author"]) == ("reconciler", "reconciler")
    assert resolved.payload["resolution"] == "completed-with-result"
    assert families() == [
        "thread-created",
        "user-input",
        "tool-prepared",
        "tool-settled",
        "tool-resolved",
        "submission-settled",
    ]
    assert call_rows() == [("charge", "settled", 1)]
    sound()


def test_a_failure_that_a_reconciler_found_is_the_failure_of_the_call(
    declare: Declare, world: World, points: Failpoints
) -> None:
    receipt = open_reconciled(declare, world, points, lambda _: api.Failed("the card was declined"))
    run()
    failure = settled(receipt).failure
    assert failure is not None
    assert failure.message == "call 'charge' of tool 'charge' failed: the card was declined"
    assert world.counts["charge"] == 1


@pytest.mark.parametrize(("answer", "said"), [(api.NeverStarted(), "never-started"), (api.SafeRetry(), "safe-retry")])
def test_163_a_call_that_may_run_is_run_again_as_a_new_try(
    declare: Declare, world: World, points: Failpoints, answer: Any, said: str
) -> None:
    receipt = open_reconciled(declare, world, points, lambda _: answer)
    run()
    assert settled(receipt).result == "charge 5"
    assert world.counts["charge"] == 2
    assert tool_records() == [
        ("tool-prepared", "charge", 1),
        ("tool-resolved", "charge", 1),
        ("tool-prepared", "charge", 2),
        ("tool-settled", "charge", 2),
    ]
    assert log()[3].payload["resolution"] == said
    assert call_rows() == [("charge", "settled", 2)]
    sound()


def broken(_: Any) -> Any:
    raise ConnectionError("password=hunter2")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (lambda _: api.StillUnknown("not in the list yet"), "not in the list yet"),
        (broken, "the reconciler failed: ConnectionError was raised"),
        (lambda _: None, "the reconciler gave no answer but a NoneType"),
        (lambda _: api.Done(object()), "the reconciler's result is not JSON: a value of type object has no JSON form"),
    ],
)
def test_a_reconciler_without_a_usable_answer_leaves_the_call_to_a_person(
    declare: Declare, world: World, points: Failpoints, answers: Any, said: str
) -> None:
    open_reconciled(declare, world, points, answers)
    run()
    assert state() == "unknown"
    assert said in log()[3].payload["reason"]
    assert world.counts["charge"] == 1
    assert not LogRecord.objects.filter(text__contains="hunter2").exists()


def test_a_call_whose_tool_nobody_declares_any_more_is_left_to_a_person(
    declare: Declare, world: World, points: Failpoints
) -> None:
    open_reconciled(declare, world, points, lambda _: api.Done(1))
    tools.unregister("charge")
    run()
    assert state() == "unknown"
    assert "no reconciler of tool 'charge' is declared" in log()[3].payload["reason"]


def test_a_reconciler_is_told_everything_about_the_call_and_asked_outside_any_transaction(
    declare: Declare, world: World, points: Failpoints
) -> None:
    asked: list[api.OpenCall] = []

    def answers(call: api.OpenCall) -> api.Done:
        assert not connection.in_atomic_block
        asked.append(call)
        return api.Done()

    receipt = open_reconciled(declare, world, points, answers)
    run()
    (call,) = asked
    assert (call.thread_id, call.submission_id, call.call, call.tool) == (
        "t",
        receipt.submission_id,
        "charge",
        "charge",
    )
    assert (call.arguments, call.tries) == ({"amount": 5}, 1)
    assert call.digest == log()[2].payload["digest"]
    assert [call.idempotency_key] == world.keys


def test_a_reconciler_may_be_a_coroutine_function(declare: Declare, world: World, points: Failpoints) -> None:
    async def answers(_: Any) -> api.Done:
        await asyncio.sleep(0)
        return api.Done("found")

    receipt = open_reconciled(declare, world, points, answers)
    run()
    assert settled(receipt).result == "found"


RECONCILING = [failpoints.RECONCILE_BEFORE, failpoints.RECONCILE_WRITTEN, failpoints.RECONCILE_AFTER]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", RECONCILING)
@pytest.mark.parametrize("answer", [api.Done("found"), api.SafeRetry()])
def test_a_crash_while_an_answer_is_recorded_asks_again_or_goes_on(
    declare: Declare, world: World, points: Failpoints, name: str, answer: Any
) -> None:
    asked: list[int] = []

    def answers(_: Any) -> Any:
        asked.append(1)
        return answer

    receipt = open_reconciled(declare, world, points, answers)
    crash(points, name)
    run_after_a_death()

    done = isinstance(answer, api.Done)
    assert settled(receipt).result == ("found" if done else "charge 5")
    assert world.counts["charge"] == (1 if done else 2)
    assert len(asked) == (1 if name == failpoints.RECONCILE_AFTER else 2)
    assert families().count("tool-resolved") == families().count("tool-settled") == 1
    sound()


@pytest.mark.parametrize("late", [api.SafeRetry(), api.Done("too late")])
def test_a_pass_that_lost_its_thread_while_it_asked_records_no_answer(
    declare: Declare, world: World, points: Failpoints, late: Any
) -> None:
    """Who took over asked as well and found nobody who can tell: a person has the word now."""
    asked: list[int] = []

    def answers(_: Any) -> Any:
        asked.append(1)
        if len(asked) > 1:
            return api.StillUnknown()
        travel(LEASE)
        assert deliver("t").outcome is Outcome.RAN
        return late

    open_reconciled(declare, world, points, answers)
    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert (state(), call_rows()) == ("unknown", [("charge", "unknown", 1)])
    assert tool_records() == [("tool-prepared", "charge", 1), ("tool-unknown", "charge", 1)]
    sound(all_settled=False)


def test_a_tool_that_kills_its_worker_each_time_is_not_permitted_for_ever(
    declare: Declare, world: World, settings: Settings
) -> None:
    settings.AGENTS = {"RETRY_BUDGET": 3}

    def die() -> None:
        raise Crash("t")

    receipt = call_one(declare, world, does=die, reconcile=lambda _: api.SafeRetry())
    for _ in range(3):
        with pytest.raises(Crash):
            deliver("t")
        travel(LEASE)
    run()

    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "AttemptsExhausted"
    assert world.counts["charge"] == 3
    sound()
