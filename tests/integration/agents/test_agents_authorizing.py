"""The host project says whether a tool may run (ledger-recovery, g.2; scenarios L 164 and 165)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from agents import api, failpoints
from agents.approvals import decide
from agents.models import Approval, ApprovalDecision, Submission
from maintenance.testing import deliver, travel
from tests.agents_kit import LEASE, agents_database, endings, families, log, run, run_after_a_death, settled, sound
from tests.hosting import Host, coroutine, host
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["host", "world"]

pytestmark = agents_database

TAG = "AgentToolAuthorizationDenied"


def handler(ctx: api.Context, given: Any) -> Any:
    return ctx.call_tool("charge", amount=5)


@pytest.fixture
def receipt(declare: Declare, world: World) -> api.Receipt:
    """Return a submission that charges once."""
    world.tool("charge")
    declare("buyer", handler)
    return api.submit("t", "buyer", {"order": 7}, principal="ann")


def failure_of(receipt: api.Receipt) -> tuple[str, str]:
    found = settled(receipt).failure
    assert found is not None
    return found.error_tag, found.message


def test_164_a_denied_tool_does_not_run_and_the_submission_fails_with_the_reason_given(
    receipt: api.Receipt, host: Host, world: World
) -> None:
    host.authorizes(lambda _: api.Deny("charges are closed"))
    run()
    assert failure_of(receipt) == (TAG, "charges are closed")
    assert families() == ["thread-created", "user-input", "submission-settled"]
    assert (world.did, call_rows()) == ([], [])
    assert [what.kind for what in host.asked] == ["ordinary"]
    assert endings() == ["settled"]
    sound()


def test_164_nothing_is_left_to_do_after_a_denial(receipt: api.Receipt, host: Host) -> None:
    host.authorizes(lambda _: api.Deny())
    run()
    run()
    assert failure_of(receipt) == (TAG, "the host project does not allow it")
    assert len(host.asked) == 1


def test_the_host_sees_what_would_be_done_for_whom(receipt: api.Receipt, host: Host) -> None:
    host.authorizes(lambda _: True)
    run()
    assert host.asked == [
        api.Intended(
            thread_id="t",
            submission_id=receipt.submission_id,
            agent="buyer",
            principal="ann",
            input={"order": 7},
            name="charge",
            tool="charge",
            kind="ordinary",
            arguments={"amount": 5},
        )
    ]
    assert settled(receipt).result == "charge 5"


def test_a_call_that_has_its_result_is_not_asked_about_again(
    receipt: api.Receipt, host: Host, world: World, points: Failpoints
) -> None:
    host.authorizes(lambda _: True)
    crash(points, failpoints.TOOL_SETTLED)
    host.says = lambda _: False
    run_after_a_death()
    assert settled(receipt).result == "charge 5"
    assert (len(host.asked), world.did) == (1, ["charge"])


def test_165_an_open_call_is_asked_about_again_before_it_runs_again(
    declare: Declare, host: Host, world: World, points: Failpoints
) -> None:
    """A permission that has gone meanwhile is gone; what ran under it before stays recorded."""
    world.tool("first", kind="idempotent")
    world.tool("second", kind="idempotent")
    declare("buyer", lambda ctx, _: [ctx.call_tool(name, amount=1) for name in ("first", "second")])
    receipt = api.submit("t", "buyer", {"order": 7})
    host.authorizes(lambda _: True)
    crash(points, failpoints.TOOL_SETTLED)
    travel(LEASE)
    crash(points, failpoints.TOOL_PREPARED)
    host.says = lambda _: api.Deny("no more")
    run_after_a_death()
    assert failure_of(receipt) == (TAG, "no more")
    assert [what.name for what in host.asked] == ["first", "second", "second"]
    assert host.asked[1] == host.asked[2]
    assert world.did == ["first"]
    assert families().count("tool-prepared") == 2
    assert call_rows() == [("first", "settled", 1), ("second", "unknown", 1)]
    assert log()[-2].payload["reason"] == "the run was denied a tool while this call was open"
    sound()


@pytest.mark.parametrize("name", [one for one in failpoints.ALL if one.startswith("settle")])
def test_a_denial_that_was_committed_is_not_asked_again_after_a_crash(
    receipt: api.Receipt, host: Host, world: World, points: Failpoints, name: str
) -> None:
    host.authorizes(lambda _: api.Deny("charges are closed"))
    crash(points, name)
    run_after_a_death()
    assert failure_of(receipt) == (TAG, "charges are closed")
    assert len(host.asked) == (1 if name == failpoints.SETTLE_AFTER else 2)
    assert (world.did, families().count("submission-settled")) == ([], 1)
    sound()


def test_no_handler_can_go_on_after_a_denial(declare: Declare, host: Host, world: World) -> None:
    """A replay that was allowed what its first life was denied would do both."""
    world.tool("charge")
    world.tool("comfort")

    def stubborn(ctx: api.Context, given: Any) -> str:
        try:
            handler(ctx, given)
        except BaseException:  # noqa: BLE001 - the worst a handler can do
            return str(ctx.call_tool("comfort", amount=1))
        return "charged"

    declare("buyer", stubborn)
    receipt = api.submit("t", "buyer", None)
    host.authorizes(lambda what: what.tool != "charge")
    run()
    assert failure_of(receipt)[0] == TAG
    assert (len(host.asked), world.did) == (1, [])


def test_what_a_coroutine_handler_has_begun_beside_a_denied_call_is_recorded(
    declare: Declare, host: Host, world: World
) -> None:
    world.tool("charge")
    denied = asyncio.Event()

    @api.tool("slow")
    async def slow() -> str:
        await denied.wait()
        return "done"

    async def refused(ctx: api.AsyncContext) -> None:
        try:
            await ctx.call_tool("charge", amount=5)
        finally:
            denied.set()

    async def gathering(ctx: api.AsyncContext, given: Any) -> None:
        await asyncio.gather(ctx.call_tool("slow"), refused(ctx))

    declare("buyer", gathering)
    receipt = api.submit("t", "buyer", None)
    host.authorizes(lambda what: what.tool != "charge")
    run()
    assert failure_of(receipt)[0] == TAG
    assert families()[2:] == ["tool-prepared", "tool-settled", "submission-settled"]
    sound()


def test_a_person_is_asked_before_the_host_is(declare: Declare, host: Host, world: World) -> None:
    world.tool("charge")
    declare("buyer", lambda ctx, _: ctx.call_tool("charge", amount=5, approval=True))
    receipt = api.submit("t", "buyer", None)
    host.authorizes(lambda _: False)
    run()
    assert host.asked == []
    decide(Approval.objects.get().pk, ApprovalDecision.APPROVED, author="ann", reason="had a look")
    run()
    assert failure_of(receipt)[0] == TAG
    assert (len(host.asked), world.did) == (1, [])


def test_an_ordinary_call_that_may_have_happened_is_shown_to_a_person_not_to_the_host(
    receipt: api.Receipt, host: Host, points: Failpoints
) -> None:
    host.authorizes(lambda _: True)
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()
    assert Submission.objects.get().state == "unknown"
    assert len(host.asked) == 1


@pytest.mark.parametrize("reason", ["a\x00b", "x" * 20_000])
def test_the_reason_of_a_denial_is_bounded(receipt: api.Receipt, host: Host, reason: str) -> None:
    host.authorizes(lambda _: api.Deny(reason))
    run()
    message = failure_of(receipt)[1]
    assert "\x00" not in message
    assert len(message) <= 16_384


def breaks(_: api.Intended) -> bool:
    raise ValueError("password")


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (breaks, "the tool authorizer failed: ValueError was raised"),
        (lambda _: None, "the tool authorizer gave no answer but a NoneType"),
        (coroutine, "the tool authorizer gave no answer but a coroutine"),
    ],
)
def test_without_an_answer_nothing_runs_and_a_later_attempt_asks_again(
    receipt: api.Receipt, host: Host, world: World, says: Any, error: str
) -> None:
    host.authorizes(says)
    result = deliver("t")
    assert result.error.startswith(error)
    assert "password" not in result.error
    assert (world.did, call_rows(), endings()) == ([], [], ["failed"])
    host.says = lambda _: True
    travel(timedelta(minutes=1))
    run()
    assert settled(receipt).result == "charge 5"


def test_a_handler_cannot_go_on_without_an_answer_either(declare: Declare, host: Host, world: World) -> None:
    world.tool("charge")

    def stubborn(ctx: api.Context, given: Any) -> str:
        try:
            handler(ctx, given)
        except BaseException:  # noqa: BLE001 - the worst a handler can do
            return "gave up"
        return "charged"

    declare("buyer", stubborn)
    receipt = api.submit("t", "buyer", None)
    host.authorizes(breaks)
    deliver("t")
    assert api.settlement(receipt) is None


def test_an_interruption_of_the_host_is_not_its_answer(receipt: api.Receipt, host: Host, world: World) -> None:
    def stopped(_: api.Intended) -> bool:
        raise SoftTimeLimitExceeded

    host.authorizes(stopped)
    deliver("t")
    assert (endings(), world.did) == (["interrupted"], [])
    assert api.settlement(receipt) is None


def test_an_authorizer_that_never_answers_is_asked_a_bounded_number_of_times(
    receipt: api.Receipt, host: Host, settings: Settings
) -> None:
    settings.AGENTS = {**settings.AGENTS, "RETRY_BUDGET": 2}
    host.authorizes(breaks)
    for _ in range(3):
        deliver("t")
        travel(timedelta(minutes=1))
    assert failure_of(receipt)[0] == "AttemptsExhausted"
    assert len(host.asked) == 2
