"""The host project decides approvals in a person's place (ledger-recovery, f.1; scenarios K 140 and 144)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from agents import api, approvals, failpoints
from agents.approvals import BY_POLICY
from agents.models import Approval, ApprovalDecision, LogRecord, Submission
from maintenance.gate import mutation
from maintenance.testing import deliver
from tests.agents_kit import agents_database, endings, families, log, run, run_after_a_death, settled, sound
from tests.hosting import Host, coroutine, host
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["host", "world"]

pytestmark = agents_database


async def in_a_coroutine(ctx: api.AsyncContext, given: Any) -> Any:
    return await ctx.call_tool("refund", amount=5, approval=True, expires_in=60)


def plainly(ctx: api.Context, given: Any) -> Any:
    return ctx.call_tool("refund", amount=5, approval=True, expires_in=60)


@pytest.fixture(params=[plainly, in_a_coroutine])
def receipt(request: pytest.FixtureRequest, declare: Declare, world: World) -> api.Receipt:
    """Return a submission whose call of `refund` has to be approved, of both kinds of handlers."""
    world.tool("refund")
    declare("buyer", request.param)
    return api.submit("t", "buyer", None, principal="ann")


def test_140_what_the_policy_denies_fails_with_question_and_answer_in_the_log(
    receipt: api.Receipt, host: Host, world: World
) -> None:
    host.approves(lambda _: api.Deny("above the limit"))
    run()
    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "ApprovalDenied"
    assert failure.message == (
        "call 'refund' of tool 'refund' was not approved (denied, approval-policy): above the limit"
    )
    assert families()[2:] == ["approval-requested", "approval-decided", "submission-settled"]
    decided = log()[3]
    assert LogRecord.objects.filter(family__startswith="approval").values("batch").distinct().count() == 1
    assert (decided.payload["resolver"], decided.payload["reason"]) == (BY_POLICY, "above the limit")
    assert (world.did, call_rows()) == ([], [])
    sound()


def test_what_the_policy_approves_is_done_at_once_and_nobody_is_asked(
    receipt: api.Receipt, host: Host, world: World
) -> None:
    host.approves(lambda _: api.Approve("small"))
    run()
    assert settled(receipt).result == "refund 5"
    assert families()[2:6] == ["approval-requested", "approval-decided", "tool-prepared", "tool-settled"]
    row = Approval.objects.get()
    assert (row.decision, row.decided_by, row.reason) == (ApprovalDecision.APPROVED, BY_POLICY, "small")
    assert endings() == ["settled"]
    sound()


def test_the_policy_sees_what_would_be_done_for_whom(receipt: api.Receipt, host: Host) -> None:
    host.approves(lambda _: api.Approve())
    run()
    (what,) = host.asked
    assert (what.name, what.tool, what.kind, what.arguments) == ("refund", "refund", "", {"amount": 5})
    assert (what.agent, what.principal, what.submission_id) == ("buyer", "ann", receipt.submission_id)


def test_a_handler_that_only_asks_gets_the_policys_decision(declare: Declare, host: Host) -> None:
    declare("asking", lambda ctx, _: ctx.approval("go", "launch", {"at": 5}).resolver)
    receipt = api.submit("t", "asking", None)
    host.approves(lambda what: api.Approve() if what.arguments == {"at": 5} else None)
    run()
    assert settled(receipt).result == BY_POLICY


def breaks(_: api.Intended) -> None:
    raise ValueError("password")


@pytest.mark.parametrize("says", [lambda _: None, breaks, lambda _: True, coroutine])
def test_144_what_the_policy_leaves_open_or_fails_to_answer_is_a_persons(
    receipt: api.Receipt, host: Host, world: World, says: Callable[[api.Intended], Any]
) -> None:
    host.approves(says)
    run()
    row = Approval.objects.get()
    assert (row.decision, Submission.objects.get().state, world.did) == ("", "suspended", [])
    assert row.expires_at is not None
    host.says = lambda _: api.Deny("too late")
    approvals.decide(row.pk, ApprovalDecision.APPROVED, author="ann", reason="had a look")
    run()
    assert settled(receipt).result == "refund 5"
    assert len(host.asked) == 1


def test_a_question_that_waits_for_a_person_is_not_put_to_the_policy_again(receipt: api.Receipt, host: Host) -> None:
    """Whoever is looking at it would find it decided under their hands."""
    run()
    host.approves(lambda _: api.Approve())
    # Nothing wakes it before its answer is there; if something ever does, the handler comes by the question again.
    with mutation("t"):
        Submission.objects.update(state="input_applied", waits_for="", waits_on="", wake_at=None)
    run()
    assert (host.asked, Approval.objects.get().decision) == ([], "")
    assert Submission.objects.get().state == "suspended"


@pytest.mark.parametrize("name", [one for one in failpoints.ALL if one.startswith(("answer:", "tools:"))])
def test_what_the_policy_decided_is_not_asked_again_after_a_crash(
    receipt: api.Receipt, host: Host, world: World, points: Failpoints, name: str
) -> None:
    host.approves(lambda _: api.Approve())
    crash(points, name)
    host.says = lambda _: api.Deny("changed its mind")
    run_after_a_death()
    decided = name not in {failpoints.ANSWER_BEFORE, failpoints.ANSWER_WRITTEN}
    assert len(host.asked) == (1 if decided else 2)
    assert Approval.objects.get().decision == ("approved" if decided else "denied")
    assert families().count("approval-requested") == families().count("approval-decided") == 1
    assert world.counts["refund"] <= decided
    sound(all_settled=False)


def test_the_reason_of_a_policy_is_bounded(receipt: api.Receipt, host: Host) -> None:
    host.approves(lambda _: api.Approve("\x00" + "x" * 20_000))
    run()
    reason = Approval.objects.get().reason
    assert len(reason) == 16_384
    assert "\x00" not in reason
    sound()


def test_an_interruption_of_the_policy_decides_nothing(receipt: api.Receipt, host: Host) -> None:
    def stopped(_: api.Intended) -> None:
        raise SoftTimeLimitExceeded

    host.approves(stopped)
    deliver("t")
    assert endings() == ["interrupted"]
    assert families() == ["thread-created", "user-input"]
