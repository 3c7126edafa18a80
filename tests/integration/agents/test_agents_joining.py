"""Joining: followers that a run takes along (ledger-recovery, f.4; scenarios J)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents import aborts
from agents.api import AgentFailure, Context, Receipt, submit
from agents.errors import AbortRefused
from agents.models import Submission
from maintenance.testing import Crash, Failpoints, run_due_passes
from tests.agents_kit import agents_database, families, log, run_after_a_death, settled, sound

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


@pytest.fixture
def gatherer(declare: Declare) -> str:
    """An agent that answers with its input and those of its followers."""
    declare("gatherer", lambda ctx, first: [first, *ctx.followups()])
    return "gatherer"


def give_up(receipt: Receipt) -> None:
    """Aborts it, as a failpoint's action."""
    aborts.abort(receipt.submission_id, author="operator", reason="enough")


def test_110_a_queued_follower_settles_with_the_run_that_takes_it(gatherer: str) -> None:
    first, second = submit("t", gatherer, 1), submit("t", gatherer, 2)
    run_due_passes()
    assert settled(first).result == [1, 2]
    assert settled(second).outcome == "completed"
    assert settled(second).result is None
    assert families() == [
        "thread-created",
        "user-input",
        "user-input",
        "followups-taken",
        "submission-settled",
        "submission-settled",
    ]
    sound()


def test_110_a_joined_input_belongs_to_the_run_of_its_host(gatherer: str) -> None:
    first, second = submit("t", gatherer, 1), submit("t", gatherer, 2)
    run_due_passes()
    joined = next(record for record in log() if record.record_id == f"input:{second.submission_id}")
    assert joined.payload["kind"] == "steering"
    assert joined.payload["run"] == f"run:{first.submission_id}"


def test_121_a_failing_run_takes_its_followers_with_it(declare: Declare) -> None:
    def handler(ctx: Context, _: Any) -> None:
        ctx.followups()
        raise AgentFailure("the supplier is closed", tag="Closed")

    declare("failing", handler)
    first, second = submit("t", "failing", 1), submit("t", "failing", 2)
    run_due_passes()
    assert settled(first).failure == settled(second).failure
    assert settled(second).outcome == "failed"
    assert [record.payload["run"] for record in log()[-2:]] == [f"run:{first.submission_id}"] * 2
    sound()


def test_126_a_follower_of_another_agent_runs_by_itself(gatherer: str, echo: str) -> None:
    first, other, third = submit("t", gatherer, 1), submit("t", echo, 2), submit("t", gatherer, 3)
    run_due_passes()
    assert settled(first).result == [1]
    assert settled(other).result == 2
    assert settled(third).result == [3]


def test_128_f24_an_aborted_follower_is_passed_by_and_blocks_nobody_behind_it(
    gatherer: str, points: Failpoints
) -> None:
    first, second, third = (submit("t", gatherer, number) for number in (1, 2, 3))
    points.arm("claim:before", lambda _: give_up(second))
    run_due_passes()
    assert settled(first).result == [1, 3]
    assert settled(second).outcome == "aborted"
    assert settled(third).outcome == "completed"
    sound()


@pytest.mark.parametrize("place", ["join:before", "join:after-canonical-append", "join:after"])
def test_118_to_120_a_crash_around_a_join_delivers_each_follower_once(
    gatherer: str, points: Failpoints, place: str
) -> None:
    first, second = submit("t", gatherer, 1), submit("t", gatherer, 2)
    points.crash_at(place)
    with pytest.raises(Crash):
        run_due_passes()
    run_after_a_death()
    assert settled(first).result == [1, 2]
    assert settled(second).outcome == "completed"
    assert families().count("user-input") == 2
    sound()


def test_a_replayed_run_sees_the_followers_that_it_took_and_no_later_ones(declare: Declare, points: Failpoints) -> None:
    def handler(ctx: Context, first: Any) -> Any:
        taken = [first, *ctx.followups()]
        ctx.step("answer", len, taken)
        return taken

    declare("steady", handler)
    first = submit("t", "steady", 1)
    points.crash_at("step:before-append")
    with pytest.raises(Crash):
        run_due_passes()
    late = submit("t", "steady", 2)
    run_after_a_death()
    assert settled(first).result == [1]
    assert settled(late).result == [2]
    sound()


def test_130_an_aborted_host_takes_its_followers_with_it(declare: Declare) -> None:
    def handler(ctx: Context, _: Any) -> None:
        ctx.followups()
        ctx.sleep(3600)

    declare("resting", handler)
    first, second = submit("t", "resting", 1), submit("t", "resting", 2)
    run_due_passes()
    aborts.abort(first.submission_id, author="operator", reason="enough")
    run_due_passes()
    assert [settled(one).outcome for one in (first, second)] == ["aborted", "aborted"]
    sound()


def test_an_abort_of_a_joined_follower_names_its_host(declare: Declare) -> None:
    def handler(ctx: Context, _: Any) -> None:
        ctx.followups()
        ctx.sleep(3600)

    declare("resting", handler)
    first, second = submit("t", "resting", 1), submit("t", "resting", 2)
    run_due_passes()
    assert Submission.objects.get(pk=second.submission_id).state == "joined"
    with pytest.raises(AbortRefused, match=str(first.submission_id)):
        aborts.abort(second.submission_id, author="operator", reason="enough")
