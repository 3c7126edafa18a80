"""Events that runs wait for, and retries that wait for a moment."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agents import events
from agents.api import Context, settlement, submit
from agents.errors import AgentInputError, EventConflict, EventTimedOut, RetryLater, UnknownThread
from agents.models import Event, Submission
from maintenance.testing import Crash, Failpoints, deliver, fixed_jitter, run_due_passes, travel
from tests.agents_kit import agents_database, endings, families, run_after_a_death, settled, sound
from tests.factories import row_of

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


@pytest.fixture
def listener(declare: Declare) -> str:
    """An agent that waits a minute for `paid` and says what it heard."""

    def handler(ctx: Context, _: Any) -> Any:
        try:
            return ctx.wait_event("paid", timeout=60)
        except EventTimedOut:
            return "nothing"

    declare("listener", handler)
    return "listener"


def tell(thread_id: str) -> None:
    """Sends the event, as a failpoint's action."""
    events.send(thread_id, "paid", 1)


def test_an_event_wakes_the_run_that_waits_for_it(listener: str) -> None:
    receipt = submit("t", listener, None)
    run_due_passes()
    assert events.send("t", "paid", {"amount": 7}) is True
    run_due_passes()
    assert settled(receipt).result == {"amount": 7}
    sound()


def test_an_event_that_came_first_is_kept_and_no_wait_is_needed(listener: str) -> None:
    receipt = submit("t", listener, None)
    events.send("t", "paid", 1)
    run_due_passes()
    assert settled(receipt).result == 1
    assert families().count("event-awaited") == 0


def test_an_event_between_the_suspension_and_finish_is_not_lost(listener: str, points: Failpoints) -> None:
    receipt = submit("t", listener, None)
    points.arm("maintenance:finish:before", tell)
    run_due_passes()
    travel(timedelta(seconds=1))
    run_due_passes()
    assert settled(receipt).result == 1


def test_an_event_that_arrives_while_the_run_is_about_to_suspend_is_taken_at_once(
    listener: str, points: Failpoints
) -> None:
    receipt = submit("t", listener, None)
    points.arm("suspend:before", tell)
    run_due_passes()
    assert settled(receipt).result == 1
    assert endings() == ["settled"]


def test_two_runs_get_two_events_in_the_order_of_their_arrival(listener: str) -> None:
    first, second = submit("t", listener, 1), submit("t", listener, 2)
    for number in (1, 2):
        events.send("t", "paid", number)
    run_due_passes()
    assert [settled(one).result for one in (first, second)] == [1, 2]
    assert not Event.objects.filter(taken_by=None).exists()


def test_an_event_sent_again_under_its_key_is_one_event_and_wakes_nobody(listener: str) -> None:
    submit("t", listener, None)
    run_due_passes()
    events.send("t", "paid", 1, key="k")
    dirty = row_of().dirty
    assert events.send("t", "paid", 1, key="k") is False
    assert row_of().dirty == dirty
    assert Event.objects.count() == 1


def test_another_payload_under_the_same_key_is_refused(listener: str) -> None:
    submit("t", listener, None)
    events.send("t", "paid", 1, key="k")
    with pytest.raises(EventConflict):
        events.send("t", "paid", 2, key="k")


def test_an_event_that_does_not_come_in_time_is_a_typed_error_on_every_replay(
    listener: str, frozen: FrozenClock, points: Failpoints
) -> None:
    receipt = submit("t", listener, None)
    run_due_passes()
    frozen.at += timedelta(seconds=60)
    points.crash_at("settle:before")
    with pytest.raises(Crash):
        run_due_passes()
    events.send("t", "paid", "late")
    frozen.at += timedelta(seconds=31)
    run_due_passes()
    assert settled(receipt).result == "nothing"
    sound()


@pytest.mark.parametrize("place", ["answer:before", "answer:written", "answer:after"])
def test_a_crash_while_an_event_is_taken_delivers_it_once(listener: str, points: Failpoints, place: str) -> None:
    receipt = submit("t", listener, None)
    events.send("t", "paid", 1)
    points.crash_at(place)
    with pytest.raises(Crash):
        run_due_passes()
    run_after_a_death()
    assert settled(receipt).result == 1
    assert families().count("event-received") == 1
    sound()


def test_an_event_for_a_thread_that_is_not_there_is_a_typed_error() -> None:
    with pytest.raises(UnknownThread):
        events.send("nobody", "paid", 1)


def test_an_event_whose_payload_is_not_json_is_refused_before_anything_is_written(listener: str) -> None:
    submit("t", listener, None)
    with pytest.raises(AgentInputError):
        events.send("t", "paid", object())
    assert not Event.objects.exists()


def test_a_retry_after_ten_minutes_is_not_claimed_earlier_not_even_by_force(
    declare: Declare, frozen: FrozenClock
) -> None:
    tries: list[int] = []

    def handler(ctx: Context, _: Any) -> str:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise RetryLater("the provider is busy", after=600)
        return "done"

    declare("polite", handler)
    receipt = submit("t", "polite", None)
    with fixed_jitter(0):
        run_due_passes()
    frozen.at += timedelta(seconds=599)
    deliver("t", forced=True)
    assert tries == [1]

    frozen.at += timedelta(seconds=1)
    run_due_passes()

    assert settled(receipt).result == "done"
    assert tries == [1, 2]


def test_o2_those_who_were_turned_away_together_come_back_apart_and_none_too_early(
    declare: Declare, frozen: FrozenClock
) -> None:
    def handler(_ctx: Context, _: Any) -> None:
        raise RetryLater("too many requests", after=600)

    declare("polite", handler)
    for number in range(20):
        submit(f"t{number}", "polite", None)
    run_due_passes()

    waits = [row.wake_at - frozen.at for row in Submission.objects.all() if row.wake_at is not None]

    assert len(set(waits)) == 20
    assert all(timedelta(seconds=600) <= wait <= timedelta(seconds=720) for wait in waits)


def test_errors_that_an_agent_declares_are_tried_again_with_backoff(declare: Declare, frozen: FrozenClock) -> None:
    def handler(ctx: Context, _: Any) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("secret host name")
        return ctx.attempt

    declare("flaky", handler, retry=(ConnectionError,))
    receipt = submit("t", "flaky", None)
    run_due_passes()
    first = Submission.objects.get().wake_at
    assert first is not None
    assert timedelta(milliseconds=500) <= first - frozen.at <= timedelta(seconds=1)
    for _ in range(2):
        frozen.at += timedelta(seconds=10)
        run_due_passes()
    assert settled(receipt).result == 3


def test_a_submission_whose_retries_are_used_up_fails_and_says_so(
    declare: Declare, frozen: FrozenClock, settings: Any
) -> None:
    settings.AGENTS = {**settings.AGENTS, "RETRY_BUDGET": 3}

    def handler(_ctx: Context, _: Any) -> None:
        raise RetryLater("busy")

    declare("hopeless", handler)
    receipt = submit("t", "hopeless", None)
    for _ in range(5):
        run_due_passes()
        frozen.at += timedelta(minutes=2)
    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "RetriesExhausted"
    assert endings().count("retried") == 2
    sound()


def test_recorded_progress_refills_the_retry_budget(declare: Declare, frozen: FrozenClock, settings: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, "RETRY_BUDGET": 2}

    def handler(ctx: Context, _: Any) -> int:
        for number in range(4):
            if ctx.attempt == number + 1:
                raise RetryLater("busy")
            ctx.step(str(number), int, number)
        return ctx.attempt

    declare("steady", handler)
    receipt = submit("t", "steady", None)
    for _ in range(6):
        run_due_passes()
        frozen.at += timedelta(minutes=2)
    assert settlement(receipt) is not None
    assert settled(receipt).outcome == "completed"
