"""Runs that only a person can bring on: what needs one, and what has been interrupted for too long (O1, N11)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agents import api, failpoints
from agents.models import Submission
from maintenance import operations
from maintenance.delivery import Outcome
from maintenance.models import OperatorAction
from maintenance.testing import MovedClock, deliver, moved_clock
from tests.agents_kit import LEASE, agents_database, endings, families, run, settled, sound
from tests.factories import MS, row_of
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

EXHAUSTED = "the balance is exhausted"


def outcomes() -> list[Outcome]:
    """What comes of all passes that are due."""
    return [result.outcome for result in run()]


def resume() -> None:
    operations.resume("t", actor="ann", reason="paid")


def reasons() -> list[str]:
    """Why the thread was paused, each time."""
    return list(OperatorAction.objects.filter(action="pause").order_by("id").values_list("reason", flat=True))


# --- O1: no further try can help ----------------------------------------------------------------


class Account:
    """What a handler pays from."""

    def __init__(self) -> None:
        self.empty = True
        self.asked = 0

    def pay(self) -> str:
        self.asked += 1
        if self.empty:
            raise api.NeedsPerson(EXHAUSTED)
        return "paid"


@pytest.fixture
def account() -> Account:
    """Return an account that is empty."""
    return Account()


def in_a_handler(declare: Declare, account: Account, _: World) -> None:
    declare("model", lambda ctx, _: [ctx.step("plan", lambda: "plan"), account.pay()])


def in_a_step(declare: Declare, account: Account, _: World) -> None:
    declare("model", lambda ctx, _: [ctx.step("plan", lambda: "plan"), ctx.step("pay", account.pay)])


def in_a_coroutine(declare: Declare, account: Account, _: World) -> None:
    async def handler(ctx: api.AsyncContext, _: Any) -> list[str]:
        return [await ctx.step("plan", lambda: "plan"), account.pay()]

    declare("model", handler)


PLACES = [in_a_handler, in_a_step, in_a_coroutine]


@pytest.mark.parametrize("place", PLACES)
def test_o1_what_needs_a_person_pauses_its_thread_at_the_first_try_and_goes_on_once_resumed(
    declare: Declare, account: Account, world: World, place: Callable[[Declare, Account, World], None]
) -> None:
    place(declare, account, world)
    receipt, follower = (api.submit("t", "model", None) for _ in range(2))

    assert outcomes() == [Outcome.PARKED]

    assert reasons() == [EXHAUSTED]
    assert api.explain(receipt).sentence.endswith(f"paused by wakeful: {EXHAUSTED}")
    assert families() == ["thread-created", "user-input", "step-settled"]
    sound(all_settled=False)

    account.empty = False
    resume()
    run()
    assert [settled(one).result for one in (receipt, follower)] == [["plan", "paid"]] * 2
    assert families().count("step-settled") == (4 if place is in_a_step else 2)
    sound()


def test_o1_no_number_of_tries_appends_anything_or_uses_anything_up(
    declare: Declare, account: Account, world: World
) -> None:
    in_a_handler(declare, account, world)
    receipt = api.submit("t", "model", None)
    run()
    logged = families()

    for _ in range(11):
        resume()
        assert outcomes() == [Outcome.PARKED]

    assert account.asked == 12
    assert families() == logged
    assert endings() == ["suspended"] * 12
    assert (row_of().failures, row_of().stalls, row_of().starts_since_finish) == (0, 0, 0)
    account.empty = False
    resume()
    run()
    assert settled(receipt).outcome == "completed"


def test_o1_a_tool_that_needs_a_person_had_no_effect_and_is_tried_again_once_resumed(
    declare: Declare, account: Account, world: World
) -> None:
    world.tool("charge", does=account.pay)
    declare("model", lambda ctx, _: ctx.call_tool("charge", amount=5))
    receipt = api.submit("t", "model", None)

    assert outcomes() == [Outcome.PARKED]
    assert (call_rows(), reasons()) == ([("charge", "permitted", 1)], [EXHAUSTED])

    account.empty = False
    resume()
    run()
    assert settled(receipt).result == "paid"
    assert (call_rows(), account.asked) == ([("charge", "settled", 2)], 2)
    sound()


def test_an_aborted_run_of_a_parked_thread_is_settled_once_it_is_resumed(
    declare: Declare, account: Account, world: World
) -> None:
    in_a_handler(declare, account, world)
    receipt = api.submit("t", "model", None)
    run()

    api.abort(receipt, reason="not worth it")
    assert run() == []
    resume()
    run()

    assert (settled(receipt).outcome, account.asked) == ("aborted", 1)
    sound()


def test_a_run_that_was_stopped_parks_nothing(declare: Declare) -> None:
    """Whatever a handler makes of its stop, the stop stands."""

    def handler(ctx: api.Context, _: Any) -> None:
        try:
            ctx.sleep(60)
        except BaseException as stop:
            raise api.NeedsPerson(EXHAUSTED) from stop

    declare("model", handler)
    api.submit("t", "model", None)

    assert outcomes() == [Outcome.RAN]
    assert Submission.objects.get().state == "suspended"
    assert reasons() == []


# --- N11: too old to go on with -----------------------------------------------------------------


@pytest.fixture
def ahead(settings: Settings) -> Iterator[MovedClock]:
    """Return a clock to move; a run may be gone on with within two days."""
    settings.AGENTS = {"RESUME_WITHIN_MS": 2 * DAY // MS}
    with moved_clock() as clock:
        yield clock


def in_two_steps(ctx: api.Context, given: Any) -> list[Any]:
    return [ctx.step("one", lambda: 1), ctx.step("two", lambda: 2), given]


@pytest.fixture
def interrupted(declare: Declare, points: Failpoints, ahead: MovedClock) -> api.Receipt:
    """Return a submission whose worker died between its two steps."""
    declare("worker", in_two_steps)
    receipt = api.submit("t", "worker", "the input")
    crash(points, failpoints.STEP_AFTER)
    return receipt


def test_n11_a_run_interrupted_too_long_ago_is_parked_for_a_person_and_keeps_all_that_it_has(
    interrupted: api.Receipt, ahead: MovedClock
) -> None:
    ahead.ahead += 3 * DAY
    follower = api.submit("t", "worker", "another")
    logged = families()

    assert outcomes() == [Outcome.PARKED]

    (reason,) = reasons()
    assert reason.startswith("the run of submission #1 was interrupted 3 d ago, the limit is 2 d: resume")
    assert families() == logged == ["thread-created", "user-input", "step-settled"]
    assert [one.state for one in Submission.objects.order_by("queue_sequence")] == ["input_applied", "ready"]
    sound(all_settled=False)

    resume()
    run()
    assert settled(interrupted).result == [1, 2, "the input"]
    assert settled(follower).result == [1, 2, "another"]
    sound()


def test_n11_within_the_limit_a_run_goes_on_by_itself(interrupted: api.Receipt, ahead: MovedClock) -> None:
    ahead.ahead += 2 * DAY - HOUR
    run()
    assert settled(interrupted).outcome == "completed"


def test_n11_without_a_limit_no_run_is_too_old(interrupted: api.Receipt, ahead: MovedClock, settings: Settings) -> None:
    settings.AGENTS = {}
    ahead.ahead += 300 * DAY
    run()
    assert settled(interrupted).outcome == "completed"


def test_n11_a_resume_holds_for_as_long_as_a_run_may_wait(
    interrupted: api.Receipt, ahead: MovedClock, points: Failpoints
) -> None:
    """If nobody comes to it for that long again, it is asked about again; no earlier."""
    ahead.ahead += 3 * DAY
    run()
    resume()
    ahead.ahead += DAY
    crash(points, failpoints.CLAIM_BEFORE)
    ahead.ahead += 2 * DAY

    assert outcomes() == [Outcome.PARKED]
    assert len(reasons()) == 2


def test_n11_a_forced_pass_goes_on_with_an_old_run(interrupted: api.Receipt, ahead: MovedClock) -> None:
    ahead.ahead += 3 * DAY
    run()
    operations.force_pass("t", actor="ann", reason="it is still wanted")

    assert deliver("t", forced=True).outcome is Outcome.RAN

    assert settled(interrupted).outcome == "completed"


def test_n11_an_old_run_that_was_aborted_settles_as_such(interrupted: api.Receipt, ahead: MovedClock) -> None:
    ahead.ahead += 3 * DAY
    run()
    api.abort(interrupted, reason="no longer wanted")
    resume()
    run()

    assert settled(interrupted).outcome == "aborted"
    assert len(reasons()) == 1


def test_n11_a_run_that_only_waited_is_never_too_old(declare: Declare, points: Failpoints, ahead: MovedClock) -> None:
    """Also if the worker that woke it died before it went on."""
    declare("sleeper", lambda ctx, _: ctx.sleep(10 * DAY))
    receipt = api.submit("t", "sleeper", None)
    run()
    ahead.ahead += 11 * DAY
    crash(points, failpoints.WAKE_AFTER)
    ahead.ahead += LEASE
    run()

    assert settled(receipt).outcome == "completed"
    assert reasons() == []


def test_n11_what_was_aborted_behind_an_old_run_settles_all_the_same(
    interrupted: api.Receipt, ahead: MovedClock
) -> None:
    follower = api.submit("t", "worker", "another")
    api.abort(follower, reason="a mistake")
    ahead.ahead += 3 * DAY

    assert outcomes() == [Outcome.PARKED]

    assert settled(follower).outcome == "aborted"
