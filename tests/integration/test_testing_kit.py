"""The test kit that users get, used as users do: under Django's own test cases and under pytest, on both databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from agents import tool, tools
from agents.api import AsyncContext, Context, resolve_approval, send_event, settlement, submit, verify
from agents.errors import ToolFailure, UnknownAgent
from agents.models import ToolCall
from agents.testing import (
    DurableTests,
    agent_for_test,
    assert_alarm,
    crash_after_effect,
    crash_at,
    durable_testing,
    expect_crash,
    refute_alarm,
    run_due_passes,
    scripted_tool,
    settled,
    travel,
    waiting,
)
from maintenance import clock, dispatch
from maintenance.models import ThreadMaintenance

if TYPE_CHECKING:
    from maintenance.dispatch import Hint

MINUTE = 60
T = "ticket-1"


def greet(ctx: Context, name: str) -> str:
    return str(ctx.step("greet", lambda: f"Hello {name}"))


def rest(ctx: Context, seconds: float) -> str:
    ctx.sleep(seconds)
    return "rested"


class KitRules(SimpleTestCase):
    """What holds under every kind of test case; the subclasses say which."""

    __test__ = False

    def test_due_work_runs_without_a_worker_and_a_broker(self) -> None:
        with agent_for_test(greet) as agent:
            receipt = submit(T, agent, "Alice")
            run_due_passes()
        assert settled(receipt).result == "Hello Alice"
        refute_alarm(T)

    def test_time_moves_for_timers_that_are_recorded(self) -> None:
        with agent_for_test(rest) as agent:
            receipt = submit(T, agent, 10 * MINUTE)
            run_due_passes()
            assert_alarm(T, within=10 * MINUTE)
            travel(9 * MINUTE)
            assert run_due_passes() == []
            travel(timedelta(minutes=1))
            assert len(run_due_passes()) == 1
        assert settled(receipt).result == "rested"

    def test_a_crash_keeps_what_was_committed_and_another_worker_goes_on(self) -> None:
        ran: Counter[str] = Counter()

        def two_steps(ctx: Context, _: Any) -> int:
            for name in ("one", "two"):
                ctx.step(name, ran.update, [name])
            return ctx.attempt

        with agent_for_test(two_steps) as agent:
            receipt = submit(T, agent, None)
            with crash_at("step:after-step-append"):
                run_due_passes()
            assert settlement(receipt) is None
            run_due_passes()
        assert ran == Counter(one=1, two=1)
        assert settled(receipt).attempts == 2
        assert verify(T, all_settled=True).ok

    def test_coroutine_handlers_see_what_the_test_has_not_committed(self) -> None:
        async def greeting(ctx: AsyncContext, name: str) -> str:
            return str(await ctx.step("greet", lambda: f"Hello {name}"))

        with agent_for_test(greeting) as agent:
            receipt = submit(T, agent, "Bob")
            run_due_passes()
        assert settled(receipt).result == "Hello Bob"

    def test_an_expiry_of_an_approval_comes_with_the_time(self) -> None:
        def ask(ctx: Context, _: Any) -> str:
            return ctx.approval("refund", "pay_back", {"amount": 5}, expires_in=MINUTE).decision

        with agent_for_test(ask) as agent:
            receipt = submit(T, agent, None)
            run_due_passes()
            assert waiting(receipt) == ("approval", "refund")
            travel(MINUTE)
            run_due_passes()
        assert settled(receipt).result == "expired"


class TestWithinOneTransaction(DurableTests, KitRules, TestCase):
    """Under Django's `TestCase`."""

    __test__ = True

    def test_nothing_is_left_for_the_next_test(self) -> None:
        assert not ThreadMaintenance.objects.exists()
        assert clock.now() - clock.DatabaseClock().now() < timedelta(seconds=1)


class TestWithRealCommits(DurableTests, KitRules, TransactionTestCase):
    """Under Django's `TransactionTestCase`."""

    __test__ = True
    available_apps = ["maintenance", "agents"]


@pytest.fixture
def kit(db: None) -> Iterator[None]:
    with durable_testing():
        yield


@pytest.fixture
def charge() -> Iterator[list[int]]:
    """Declare a tool; what it really charged."""
    charged: list[int] = []

    @tool("charge")
    def _charge(amount: int) -> str:
        charged.append(amount)
        return "real"

    yield charged
    tools.unregister("charge")


def pay(ctx: Context, amount: int) -> Any:
    return ctx.call_tool("charge", amount=amount)


@pytest.mark.usefixtures("kit")
class TestUnderPytest:
    def test_a_scripted_tool_answers_in_place_of_the_real_one_and_counts(self, charge: list[int]) -> None:
        with agent_for_test(pay) as agent, scripted_tool("charge", "c-1", "c-2") as script:
            receipts = [submit(T, agent, amount) for amount in (5, 7)]
            run_due_passes()
        assert [settled(receipt).result for receipt in receipts] == ["c-1", "c-2"]
        assert script.calls == [{"amount": 5}, {"amount": 7}]
        assert charge == []
        assert tools.get("charge").bound(tools.get("charge").encode({"amount": 1}), "key", None)() == "real"

    def test_a_scripted_tool_may_fail(self, charge: list[int]) -> None:
        with agent_for_test(pay) as agent, scripted_tool("charge", ToolFailure("declined")):
            receipt = submit(T, agent, 5)
            run_due_passes()
        failure = settled(receipt).failure
        assert failure is not None
        assert "declined" in failure.message

    def test_a_process_that_crash_after_effect_the_effect_leaves_an_unknown_call(self, charge: list[int]) -> None:
        with agent_for_test(pay) as agent, scripted_tool("charge", crash_after_effect()) as script:
            receipt = submit(T, agent, 5)
            with expect_crash():
                run_due_passes()
            run_due_passes()
        assert len(script) == 1
        assert ToolCall.objects.get().status == "unknown"
        refute_alarm(T)
        with pytest.raises(AssertionError, match="its state is unknown"):
            settled(receipt)

    def test_a_call_beyond_the_script_fails_the_block_even_if_the_agent_caught_it(self, charge: list[int]) -> None:
        def careless(ctx: Context, amount: int) -> str:
            try:
                return str(pay(ctx, amount))
            except Exception:  # noqa: BLE001 - that is the point
                return "never mind"

        def play() -> None:
            with agent_for_test(careless) as agent, scripted_tool("charge"):
                submit(T, agent, 5)
                run_due_passes()

        with pytest.raises(AssertionError, match="0 answers, and the tool was called 1 times more"):
            play()

    def test_a_function_that_is_no_declared_tool_can_be_scripted_by_itself(self) -> None:
        def ring(number: str) -> str:
            raise AssertionError(number)

        def call(ctx: Context, number: str) -> Any:
            return ctx.call_tool(ring, number=number)

        with agent_for_test(call) as agent, scripted_tool(ring, "ringing"):
            receipt = submit(T, agent, "1")
            run_due_passes()
        assert settled(receipt).result == "ringing"
        assert tools.find("ring") is None

    def test_an_agent_of_the_same_name_is_back_after_the_test(self) -> None:
        with agent_for_test(greet, name="desk"):
            with agent_for_test(lambda _ctx, _given: "other", name="desk") as agent:
                receipt = submit(T, agent, "Eve")
                run_due_passes()
            again = submit(T, "desk", "Eve")
            run_due_passes()
        assert [settled(one).result for one in (receipt, again)] == ["other", "Hello Eve"]
        with pytest.raises(UnknownAgent):
            submit(T, "desk", "Eve")

    def test_answers_from_outside_reach_a_waiting_submission(self) -> None:
        def both(ctx: Context, _: Any) -> list[Any]:
            return [bool(ctx.approval("send", "send", {})), ctx.wait_event("paid")]

        with agent_for_test(both) as agent:
            receipt = submit(T, agent, None)
            run_due_passes()
            resolve_approval(receipt, "approved", name="send", reason="fine")
            run_due_passes()
            assert waiting(receipt) == ("event", "paid")
            refute_alarm(T)
            send_event(T, "paid", {"cents": 5})
            run_due_passes()
        assert settled(receipt).result == [True, {"cents": 5}]

    def test_a_crash_that_did_not_happen_fails_the_test_and_says_what_was_passed(self) -> None:
        with agent_for_test(greet) as agent:
            submit(T, agent, "Alice")
            told = pytest.raises(AssertionError, match=r"tools:ran was not reached.*step:before-append")
            with told, crash_at("tools:ran"):
                run_due_passes()

    def test_another_crash_than_the_ordered_one_does_not_count(self, charge: list[int]) -> None:
        with agent_for_test(pay) as agent, scripted_tool("charge", crash_after_effect()):
            submit(T, agent, 5)
            with pytest.raises(AssertionError, match="tools:ran was not reached"), crash_at("tools:ran"):
                run_due_passes()

    def test_a_block_in_which_nothing_crashes_is_told(self) -> None:
        with pytest.raises(AssertionError, match="nothing crashed"), expect_crash():
            run_due_passes()

    def test_a_misspelt_failpoint_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no failpoint 'step:after'"), crash_at("step:after"):
            pass

    def test_the_nth_time_can_be_meant(self) -> None:
        def three(ctx: Context, _: Any) -> list[int]:
            return [ctx.step(str(n), lambda: ctx.attempt) for n in range(3)]

        with agent_for_test(three) as agent:
            receipt = submit(T, agent, None)
            with crash_at("step:after-step-append", nth=2):
                run_due_passes()
            run_due_passes()
        assert settled(receipt).result == [1, 1, 2]

    def test_a_pass_that_fails_fails_the_test_unless_it_is_expected(self) -> None:
        with agent_for_test(greet) as agent:
            submit(T, agent, "Alice")
        with pytest.raises(AssertionError, match="binding missing"):
            run_due_passes()
        travel(MINUTE)
        assert [result.failed for result in run_due_passes(failing=True)] == [True]

    def test_time_does_not_go_back(self) -> None:
        with pytest.raises(ValueError, match="forward"):
            travel(-1)

    def test_alarms_that_are_not_as_said_are_told(self) -> None:
        with agent_for_test(rest) as agent:
            submit(T, agent, 10 * MINUTE)
            run_due_passes()
        with pytest.raises(AssertionError, match="not within 0:01:00"):
            assert_alarm(T, within=MINUTE)
        with pytest.raises(AssertionError, match="has an alarm"):
            refute_alarm(T)
        with pytest.raises(AssertionError, match="has no alarm"):
            assert_alarm("another")

    def test_a_submission_that_does_not_wait_is_told(self) -> None:
        with agent_for_test(greet) as agent:
            receipt = submit(T, agent, "Alice")
            with pytest.raises(AssertionError, match="its state is ready"):
                waiting(receipt)
            with pytest.raises(AssertionError, match="not settled: its state is ready, after 0 attempts"):
                settled(receipt)


def test_travelling_needs_the_kit() -> None:
    with pytest.raises(RuntimeError, match="DurableTests"):
        travel(1)


@pytest.mark.django_db(transaction=True, available_apps=["maintenance", "agents"])
def test_no_hint_reaches_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Hint] = []
    monkeypatch.setattr(dispatch, "send", reached.append)
    with durable_testing(), agent_for_test(greet) as agent:
        submit(T, agent, "Alice")
    assert reached == []


def test_the_connection_of_a_test_belongs_to_it_alone_afterwards(db: None) -> None:
    with durable_testing():
        assert connection.allow_thread_sharing
    assert not any(connections[alias].allow_thread_sharing for alias in connections)
