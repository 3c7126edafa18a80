"""Aborts, wherever the submission stands (ledger-recovery, f.3; scenarios I)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agents import aborts
from agents.api import Context, settlement, submit
from agents.errors import AbortRefused
from agents.models import Submission
from maintenance.testing import Crash, Failpoints, run_due_passes
from tests.agents_kit import agents_database, endings, families, run_after_a_death, settled, sound

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


def abort(receipt: Any, reason: str = "enough") -> aborts.Abort:
    return aborts.abort(receipt.submission_id, author="operator", reason=reason)


def test_98_the_first_asker_is_kept(echo: str) -> None:
    receipt = submit("t", echo, 1)
    abort(receipt, "first")
    assert abort(receipt, "second").reason == "first"


def test_100_a_queued_submission_is_settled_without_ever_running(echo: str) -> None:
    receipt = submit("t", echo, 1)
    abort(receipt)
    run_due_passes()
    assert settled(receipt).outcome == "aborted"
    assert families() == ["thread-created", "abort-requested", "submission-settled"]
    sound()


def test_101_an_aborted_follower_is_settled_while_the_head_sleeps(declare: Declare) -> None:
    declare("sleeper", lambda ctx, _: ctx.sleep(3600))
    head, follower = submit("t", "sleeper", 1), submit("t", "sleeper", 2)
    run_due_passes()

    abort(follower)
    run_due_passes()

    assert settled(follower).outcome == "aborted"
    assert settlement(head) is None
    assert Submission.objects.get(pk=head.submission_id).state == "suspended"
    assert families().count("user-input") == 1


def test_106_a_sleeping_submission_is_settled_as_aborted_and_the_next_one_runs(declare: Declare, echo: str) -> None:
    declare("sleeper", lambda ctx, _: ctx.sleep(3600))
    head, follower = submit("t", "sleeper", 1), submit("t", echo, 2)
    run_due_passes()

    abort(head)
    run_due_passes()

    assert [settled(one).outcome for one in (head, follower)] == ["aborted", "completed"]
    sound()


def test_a_running_submission_ends_at_its_next_boundary(declare: Declare, settings: Any) -> None:
    settings.AGENTS = {**settings.AGENTS, "ABORT_POLL_MS": 5}
    reached: list[str] = []

    def handler(ctx: Context, _: Any) -> None:
        ctx.step("one", reached.append, "one")
        aborts.abort(ctx.submission_id, author="operator", reason="enough")
        while not ctx._attempt.aborted():
            pass
        ctx.step("two", reached.append, "two")

    declare("long", handler)
    receipt = submit("t", "long", None)
    run_due_passes()

    assert settled(receipt).outcome == "aborted"
    assert reached == ["one"]
    assert families()[2:] == ["step-settled", "abort-requested", "submission-settled"]
    assert endings() == ["settled"]
    sound()


def test_an_abort_of_what_is_settled_is_refused_and_changes_nothing(echo: str) -> None:
    receipt = submit("t", echo, 1)
    run_due_passes()
    with pytest.raises(AbortRefused, match="completed"):
        abort(receipt)
    assert settled(receipt).outcome == "completed"


def test_an_abort_wakes_its_thread_in_its_own_transaction(echo: str, points: Failpoints) -> None:
    receipt = submit("t", echo, 1)
    points.crash_at("abort:after-intent")
    with pytest.raises(Crash):
        abort(receipt)
    run_due_passes()
    assert settled(receipt).outcome == "aborted"


@pytest.mark.parametrize("place", ["abort:settle:before", "abort:settle:written", "abort:settle:after"])
def test_a_crash_while_an_abort_is_settled_leaves_one_settlement(echo: str, points: Failpoints, place: str) -> None:
    receipt = submit("t", echo, 1)
    abort(receipt)
    points.crash_at(place)
    with pytest.raises(Crash):
        run_due_passes()
    run_after_a_death()
    assert settled(receipt).outcome == "aborted"
    sound()
