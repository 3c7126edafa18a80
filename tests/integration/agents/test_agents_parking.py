"""Runs that only a person can bring on: what needs one, and what has been interrupted for too long (O1, N11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents import api
from agents.models import Submission
from maintenance import operations
from maintenance.delivery import Outcome
from maintenance.models import OperatorAction
from tests.agents_kit import agents_database, endings, families, run, settled, sound
from tests.factories import row_of
from tests.tools_kit import World, call_rows, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

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
