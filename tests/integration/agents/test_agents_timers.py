"""Durable timers: `ctx.sleep` and `ctx.sleep_until` (the design, 3.7 and 4.6)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agents.api import Context, agent, settlement, submit
from agents.models import Submission
from agents.registry import unregister
from maintenance.testing import deliver, run_due_passes
from tests.agents_kit import agents_database
from tests.factories import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint

pytestmark = agents_database


@pytest.fixture
def entered(frozen: FrozenClock, sent: list[Hint]) -> Iterator[list[str]]:
    """An agent that sleeps ten minutes between two steps; what its code did, in order."""
    did: list[str] = []

    @agent("sleeper")
    def sleeper(ctx: Context, _: Any) -> str:
        did.append("entered")
        ctx.step("before", did.append, "before")
        ctx.sleep(600)
        ctx.step("after", did.append, "after")
        return "rested"

    yield did
    unregister("sleeper")


def test_a_sleep_on_an_idle_thread_costs_two_passes(entered: list[str], frozen: FrozenClock) -> None:
    receipt = submit("t", "sleeper", None)
    assert len(run_due_passes()) == 1
    assert settlement(receipt) is None

    frozen.at += timedelta(seconds=600)

    assert len(run_due_passes()) == 1
    ended = settlement(receipt)
    assert ended is not None
    assert ended.result == "rested"
    assert entered == ["entered", "before", "entered", "after"]


def test_a_sleeping_thread_has_its_slot_at_the_timer_and_is_clean(entered: list[str], frozen: FrozenClock) -> None:
    submit("t", "sleeper", None)
    run_due_passes()
    row = row_of()
    assert row.alarm_at == row.timer_at == frozen.at + timedelta(seconds=600)
    assert not row.is_dirty


def test_nothing_goes_on_before_the_timer_not_even_a_forced_pass(entered: list[str], frozen: FrozenClock) -> None:
    submit("t", "sleeper", None)
    run_due_passes()
    frozen.at += timedelta(seconds=599)

    deliver("t", forced=True)

    assert entered == ["entered", "before"]
    assert Submission.objects.get().state == "suspended"
