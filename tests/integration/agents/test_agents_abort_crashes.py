"""Aborts of what is open, asked about or joined, and what a crash leaves of them (scenarios I, J and K)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents import aborts, api, approvals, failpoints
from agents.errors import ApprovalConflict
from agents.models import Approval, ApprovalDecision, Attempt, Submission
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, families, log, run, run_after_a_death, settled, sound
from tests.factories import row_of
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

SETTLING = [failpoints.ABORT_SETTLE_BEFORE, failpoints.ABORT_SETTLE_WRITTEN, failpoints.ABORT_SETTLE_AFTER]


def give_up(receipt: api.Receipt) -> None:
    aborts.abort(receipt.submission_id, author="ann", reason="enough")


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("place", SETTLING)
def test_105_an_aborted_call_that_never_ran_stays_unrun_wherever_the_settlement_is_cut_off(
    declare: Declare, world: World, points: Failpoints, place: str
) -> None:
    """Its record says that nobody can tell, once, before the settlement; nobody is asked about it."""
    world.tool("charge")
    declare("buyer", lambda ctx, _: ctx.call_tool("charge", amount=5))
    receipt = api.submit("t", "buyer", None)
    crash(points, failpoints.TOOL_PREPARED)
    give_up(receipt)
    travel(LEASE)
    crash(points, place)
    run_after_a_death()

    assert settled(receipt).outcome == "aborted"
    assert families()[2:] == ["tool-prepared", "abort-requested", "tool-unknown", "submission-settled"]
    assert (world.did, call_rows()) == ([], [("charge", "unknown", 1)])
    before = families()
    deliver("t", forced=True)
    assert families() == before
    sound()


@pytest.fixture
def asked(declare: Declare, world: World) -> api.Receipt:
    """Return a submission whose call of `refund` waits for a person."""
    world.tool("refund")
    declare("asker", lambda ctx, _: ctx.call_tool("refund", amount=5, approval=True))
    receipt = api.submit("t", "asker", None)
    run()
    return receipt


def test_106_an_abort_withdraws_the_question_and_the_call_is_never_made(asked: api.Receipt, world: World) -> None:
    give_up(asked)
    run()

    assert settled(asked).outcome == "aborted"
    assert families()[2:] == ["approval-requested", "abort-requested", "submission-settled"]
    assert (world.did, call_rows()) == ([], [])
    assert Approval.objects.get().decision == ApprovalDecision.WITHDRAWN
    assert Attempt.objects.count() == 1
    sound()


@pytest.mark.parametrize("decision", [ApprovalDecision.APPROVED, ApprovalDecision.DENIED])
def test_143_a_decision_for_settled_work_is_refused_and_changes_nothing(
    asked: api.Receipt, decision: ApprovalDecision
) -> None:
    give_up(asked)
    run()
    before = row_of().dirty
    with pytest.raises(ApprovalConflict, match="ann has decided: withdrawn"):
        approvals.decide(Approval.objects.get().pk, decision, author="bob", reason="late")
    assert row_of().dirty == before


@pytest.mark.parametrize("ends", ["abort", "deny"])
def test_n12_whoever_ends_a_wait_touches_nothing_that_was_accepted_behind_it(
    asked: api.Receipt, echo: str, ends: str
) -> None:
    later = [api.submit("t", echo, number) for number in (1, 2)]
    run()
    before = list(Submission.objects.exclude(pk=asked.submission_id).order_by("pk").values())
    recorded = log()

    if ends == "abort":
        give_up(asked)
    else:
        approvals.decide(Approval.objects.get().pk, ApprovalDecision.DENIED, author="ann", reason="no")

    assert list(Submission.objects.exclude(pk=asked.submission_id).order_by("pk").values()) == before
    assert log() == recorded
    run()
    assert [settled(receipt).result for receipt in later] == [1, 2]
    assert log()[: len(recorded)] == recorded
    sound()


def test_101_an_aborted_follower_settles_before_its_head_and_those_behind_it_go_on(echo: str) -> None:
    first, second, third = (api.submit("t", echo, number) for number in (1, 2, 3))
    give_up(second)
    run()

    outcomes = [settled(receipt).outcome for receipt in (first, second, third)]
    assert outcomes == ["completed", "aborted", "completed"]
    order = [record.payload["submission"] for record in log() if record.family == "submission-settled"]
    assert order == [str(receipt.submission_id) for receipt in (second, first, third)]
    assert "run" not in next(record for record in log() if record.family == "submission-settled").payload
    sound()


@pytest.mark.parametrize("place", [failpoints.ABORT_BEFORE, failpoints.ABORT_WRITTEN])
def test_n19_an_abort_that_died_before_its_commit_was_never_asked_for(
    echo: str, points: Failpoints, place: str
) -> None:
    receipt = api.submit("t", echo, 1)
    points.crash_at(place)
    with pytest.raises(Crash):
        give_up(receipt)
    run()
    assert settled(receipt).outcome == "completed"
    assert "abort-requested" not in families()


# --- followers ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("place", [failpoints.JOIN_BEFORE, failpoints.JOIN_WRITTEN])
def test_123_a_follower_aborted_after_a_crash_in_its_join_is_delivered_to_nobody(
    declare: Declare, points: Failpoints, place: str
) -> None:
    declare("gatherer", lambda ctx, first: [first, *ctx.followups()])
    first, second = api.submit("t", "gatherer", 1), api.submit("t", "gatherer", 2)
    crash(points, place)
    assert Submission.objects.get(pk=second.submission_id).state == "ready"
    give_up(second)
    run_after_a_death()

    assert settled(first).result == [1]
    assert settled(second).outcome == "aborted"
    ids = [record.record_id for record in log()]
    assert f"input:{second.submission_id}" not in ids
    assert f"abort:{second.submission_id}" in ids
    sound()


SETTLE = [name for name in failpoints.ALL if name.startswith("settle:")]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("place", SETTLE)
def test_124_a_failing_host_and_its_follower_settle_alike_wherever_the_crash_comes(
    declare: Declare, points: Failpoints, place: str
) -> None:
    def handler(ctx: api.Context, _: Any) -> None:
        ctx.followups()
        raise api.AgentFailure("the supplier is closed", tag="Closed")

    declare("failing", handler)
    host, follower = api.submit("t", "failing", 1), api.submit("t", "failing", 2)
    crash(points, place)
    run_after_a_death()

    assert [settled(one).outcome for one in (host, follower)] == ["failed", "failed"]
    assert settled(host).failure == settled(follower).failure
    ends = [record.payload for record in log() if record.family == "submission-settled"]
    assert [end["run"] for end in ends] == [f"run:{host.submission_id}"] * 2
    sound()


def test_112_what_was_submitted_between_two_seams_is_taken_at_the_second_alone(declare: Declare) -> None:
    late: list[api.Receipt] = []

    def handler(ctx: api.Context, first: Any) -> Any:
        early = ctx.followups(1)
        ctx.step("work", lambda: late.append(api.submit("t", "gatherer", 3)))
        return [first, early, ctx.followups(1)]

    declare("gatherer", handler)
    first, second = api.submit("t", "gatherer", 1), api.submit("t", "gatherer", 2)
    run()

    assert settled(first).result == [1, [2], [3]]
    inputs = [record.payload["submission"] for record in log() if record.family == "user-input"]
    assert inputs == [str(one.submission_id) for one in (first, second, *late)]
    assert families()[-3:] == ["submission-settled"] * 3
    sound()
