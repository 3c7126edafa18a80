"""Tool calls that a person has to approve first (ledger-recovery, f.1 and g.2; scenarios K 132-138)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agents import api, approvals, failpoints
from agents.models import Approval, ApprovalDecision, Submission
from tests.agents_kit import agents_database, families, run, run_after_a_death, settled, sound
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

APPROVED, DENIED = ApprovalDecision.APPROVED, ApprovalDecision.DENIED


def decide(decision: ApprovalDecision, name: str = "refund") -> None:
    row = Approval.objects.get(name=name)
    approvals.decide(row.pk, decision, author="ann", reason="had a look", digest=row.digest)
    run()


@pytest.fixture(params=["plain", "coroutine"])
def asked(request: pytest.FixtureRequest, declare: Declare, world: World) -> api.Receipt:
    """Return a submission whose call of `refund` waits for a person, of both kinds of handlers."""
    world.tool("refund")

    async def coroutine(ctx: api.AsyncContext, given: Any) -> Any:
        return await ctx.call_tool("refund", amount=5, approval=True, expires_in=60)

    def plain(ctx: api.Context, given: Any) -> Any:
        return ctx.call_tool("refund", amount=5, approval=True, expires_in=60)

    declare("buyer", plain if request.param == "plain" else coroutine)
    receipt = api.submit("t", "buyer", None)
    run()
    return receipt


def test_132_a_call_that_needs_approval_is_not_made_before_the_decision(asked: api.Receipt, world: World) -> None:
    row = Approval.objects.get()
    assert (row.name, row.tool, row.arguments) == ("refund", "refund", '{"amount":5}')
    assert row.expires_at is not None
    assert Submission.objects.get().state == "suspended"
    assert (world.did, call_rows()) == ([], [])


def test_133_an_approved_call_is_made_once(asked: api.Receipt, world: World) -> None:
    decide(APPROVED)
    assert settled(asked).result == "refund 5"
    assert world.did == ["refund"]
    assert families()[2:6] == ["approval-requested", "approval-decided", "tool-prepared", "tool-settled"]
    sound()


def test_134_a_denied_call_is_never_prepared(asked: api.Receipt, world: World) -> None:
    decide(DENIED)
    failure = settled(asked).failure
    assert failure is not None
    assert failure.error_tag == "ApprovalDenied"
    assert failure.message == "call 'refund' of tool 'refund' was not approved (denied, ann): had a look"
    assert (world.did, call_rows()) == ([], [])
    assert "tool-prepared" not in families()
    sound()


def test_a_handler_may_catch_the_denial(declare: Declare, world: World) -> None:
    world.tool("refund")

    def handler(ctx: api.Context, given: Any) -> str:
        try:
            return str(ctx.call_tool("refund", amount=5, approval=True))
        except api.ApprovalDenied:
            return "explained instead"

    declare("buyer", handler)
    receipt = api.submit("t", "buyer", None)
    run()
    decide(DENIED)
    assert settled(receipt).result == "explained instead"


@pytest.mark.parametrize("name", [one for one in failpoints.ALL if one.startswith(("tools:", "answer:"))])
def test_an_approval_is_not_asked_again_after_a_crash_and_the_call_is_made_at_most_once(
    declare: Declare, world: World, points: Failpoints, name: str
) -> None:
    world.tool("refund")
    declare("buyer", lambda ctx, _: ctx.call_tool("refund", amount=5, approval=True))
    api.submit("t", "buyer", None)
    run()
    row = Approval.objects.get()
    approvals.decide(row.pk, APPROVED, author="ann", reason="had a look")
    crash(points, name)
    run_after_a_death()
    assert world.counts["refund"] <= 1
    assert families().count("approval-requested") == families().count("approval-decided") == 1


@pytest.mark.parametrize("decision", [APPROVED, DENIED])
@pytest.mark.parametrize("name", [one for one in failpoints.ALL if one.startswith("suspend:")])
def test_n16_a_question_that_was_cut_off_is_asked_once_and_its_answer_is_what_happens(
    declare: Declare, world: World, points: Failpoints, name: str, decision: ApprovalDecision
) -> None:
    world.tool("refund")
    declare("buyer", lambda ctx, _: ctx.call_tool("refund", amount=5, approval=True))
    receipt = api.submit("t", "buyer", None)
    crash(points, name)
    run_after_a_death()
    decide(decision)

    approved = decision is APPROVED
    assert settled(receipt).outcome == ("completed" if approved else "failed")
    assert world.did == (["refund"] if approved else [])
    assert families().count("approval-requested") == 1
    sound()


def test_138_calls_that_need_approval_are_asked_one_after_the_other(declare: Declare, world: World) -> None:
    world.tool("refund")
    declare("buyer", lambda ctx, _: [ctx.call_tool("refund", amount=n, approval=True) for n in (1, 2)])
    receipt = api.submit("t", "buyer", None)
    run()
    decide(APPROVED)
    assert world.did == ["refund"]
    decide(APPROVED, "refund 2")
    assert settled(receipt).result == ["refund 1", "refund 2"]
    assert world.did == ["refund"] * 2


def test_approvals_that_are_asked_beside_each_other_are_all_answered(declare: Declare, world: World) -> None:
    world.tool("refund")

    async def handler(ctx: api.AsyncContext, given: Any) -> list[Any]:
        calls = (ctx.call_tool("refund", amount=n, approval=True) for n in (1, 2))
        return list(await asyncio.gather(*calls))

    declare("buyer", handler)
    receipt = api.submit("t", "buyer", None)
    run()
    decide(APPROVED)
    decide(APPROVED, "refund 2")
    assert settled(receipt).result == ["refund 1", "refund 2"]
    assert world.did == ["refund"] * 2
    sound()


def test_what_was_approved_must_be_what_is_done_also_after_the_decision_is_recorded(
    declare: Declare, world: World, points: Failpoints
) -> None:
    """A decision is bound to a digest: a later attempt with another amount has none."""
    world.tool("refund")
    declare("buyer", lambda ctx, _: ctx.call_tool("refund", amount=500 if ctx.attempt > 2 else 5, approval=True))
    receipt = api.submit("t", "buyer", None)
    run()
    approvals.decide(Approval.objects.get().pk, APPROVED, author="ann", reason="had a look")
    crash(points, failpoints.TOOL_BEFORE)
    run_after_a_death()
    failure = settled(receipt).failure
    assert failure is not None
    assert "was asked for something else" in failure.message
    assert world.did == []
