"""Two who reach for one submission: a pass that lost its thread, a person who aborts (scenarios J, S and T)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import OperationalError

from agents import aborts, api, failpoints, registry
from agents import log as log_module
from agents.log import Batch
from agents.models import AbortIntent, Attempt, Submission
from maintenance import renewal
from maintenance.delivery import Outcome
from maintenance.errors import OwnershipLost
from maintenance.lease import fenced
from maintenance.testing import deliver, travel
from maintenance.work import PassWork
from tests.agents_kit import (
    LEASE,
    agents_database,
    endings,
    families,
    log,
    run,
    run_after_a_death,
    settled,
    settlements_in_log,
    sound,
)
from tests.factories import row_of

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.usefixtures("form")]


def be_taken_over(thread_id: str) -> None:
    """The process stands still until its lease has expired and another pass has done the work of the thread."""
    travel(LEASE)
    run()


# --- a pass that comes back ---------------------------------------------------------------------


def test_272_273_a_pass_that_stood_still_before_its_settlement_changes_nothing_of_the_other_ones(
    declare: Declare, points: Failpoints
) -> None:
    declare("counted", lambda ctx, _: ctx.attempt)
    receipt = api.submit("t", "counted", None)
    points.arm(failpoints.SETTLE_BEFORE, be_taken_over)

    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert settled(receipt).result == 2
    assert settlements_in_log() == 1
    assert endings() == ["lost", "settled"]
    sound()


def test_117_129_a_pass_that_stood_still_before_its_join_takes_nobody_along(
    declare: Declare, points: Failpoints
) -> None:
    """Who took over has taken the follower; the late join changes no state and no epoch."""
    declare("gatherer", lambda ctx, first: [ctx.attempt, first, *ctx.followups()])
    first, second = api.submit("t", "gatherer", 1), api.submit("t", "gatherer", 2)
    points.arm(failpoints.JOIN_BEFORE, be_taken_over)

    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert settled(first).result == [2, 1, 2]
    assert settled(second).outcome == "completed"
    assert families().count("user-input") == 2
    assert families().count("followups-taken") == 1
    assert list(Attempt.objects.order_by("pk").values_list("epoch", flat=True)) == [1, 2]
    sound()


def test_28_274_a_lease_that_expired_unclaimed_is_renewed_and_what_follows_is_written_under_it(
    declare: Declare,
) -> None:
    """A renewal changes no token, so nothing that is under way has to learn another one."""
    renewed: list[bool] = []

    def handler(ctx: api.Context, _: Any) -> Any:
        work = ctx._attempt.work
        assert isinstance(work, PassWork)
        for age in (timedelta(seconds=1), LEASE):
            travel(age)
            before = row_of().lease_expires_at
            renewed.append(renewal.renew(work.lease))
            after = row_of().lease_expires_at
            assert before is not None
            assert after is not None
            assert after > before, "a renewal never shortens"
        assert deliver("t", forced=True).outcome is Outcome.BUSY
        return ctx.step("one", lambda: ctx.attempt)

    declare("slow", handler)
    receipt = api.submit("t", "slow", None)
    run()

    assert (renewed, settled(receipt).result) == ([True, True], 1)
    sound()


def test_29_30_a_lease_that_was_taken_over_is_neither_renewed_nor_let_go_by_its_old_owner(declare: Declare) -> None:
    """The new owner is at work while the old one comes back: the thread stays with the new one."""
    renewed: list[bool] = []
    outcomes: list[Outcome] = []

    def handler(ctx: api.Context, _: Any) -> Any:
        work = ctx._attempt.work
        assert isinstance(work, PassWork)
        if ctx.attempt == 1:
            travel(LEASE)
            leases.append(work.lease)
            outcomes.append(deliver("t").outcome)
        else:
            renewed.extend(renewal.renew(lease) for lease in (leases[0], work.lease))
            assert (work.lease.token != leases[0].token, work.epoch) == (True, leases[0].epoch + 1)
            assert deliver("t", forced=True).outcome is Outcome.BUSY
        return ctx.attempt

    leases: list[Any] = []
    declare("slow", handler)
    receipt = api.submit("t", "slow", None)

    outcomes.append(deliver("t").outcome)

    assert (renewed, outcomes) == ([False, True], [Outcome.RAN, Outcome.LEASE_LOST])
    assert settled(receipt).result == 2
    sound()


def test_47_whoever_claims_an_epoch_or_a_token_that_nobody_was_given_can_write_nothing(declare: Declare) -> None:
    refused: list[str] = []

    def handler(ctx: api.Context, _: Any) -> None:
        work = ctx._attempt.work
        assert isinstance(work, PassWork)
        for forged in (replace(work.lease, epoch=work.epoch + 1), replace(work.lease, token=uuid4())):
            with pytest.raises(OwnershipLost) as lost, fenced(forged):
                Submission.objects.update(outcome="completed")
            refused.append(lost.value.message)

    declare("forger", handler)
    receipt = api.submit("t", "forger", None)
    run()

    assert len(refused) == 2
    assert settled(receipt).outcome == "completed"
    sound()


def test_37_a_run_whose_store_failed_lets_its_thread_go_at_once(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the lease to expire: the slot lies a backoff ahead, and the thread can be claimed."""
    original = log_module.append

    def refuse_once(thread_id: str, batch: Batch, **options: Any) -> Any:
        if batch.batch_id.startswith("step:"):
            monkeypatch.setattr(log_module, "append", original)
            raise OperationalError("gone")
        return original(thread_id, batch, **options)

    declare("stepping", lambda ctx, _: ctx.step("one", lambda: ctx.attempt))
    receipt = api.submit("t", "stepping", None)
    monkeypatch.setattr(log_module, "append", refuse_once)

    assert deliver("t").outcome is Outcome.FAILED
    assert row_of().lease_token is None
    assert deliver("t", forced=True).outcome is Outcome.RAN

    assert settled(receipt).result == 2
    sound()


# --- a person and a run -------------------------------------------------------------------------


def give_up(receipt: api.Receipt) -> None:
    """Aborts it, as a failpoint's action."""
    aborts.abort(receipt.submission_id, author="ann", reason="enough")


def test_275_a_run_that_settles_before_an_accepted_abort_is_seen_stays_completed(
    declare: Declare, points: Failpoints
) -> None:
    declare("quick", lambda _ctx, _: "done")
    receipt = api.submit("t", "quick", None)
    points.arm(failpoints.SETTLE_BEFORE, lambda _: give_up(receipt))
    run()

    assert (settled(receipt).outcome, settled(receipt).result) == ("completed", "done")
    assert AbortIntent.objects.exists(), "the abort was accepted, and came too late"
    assert settlements_in_log() == 1
    sound()


def test_275_a_run_whose_abort_was_settled_by_another_pass_completes_nothing(
    declare: Declare, points: Failpoints
) -> None:
    def abort_elsewhere(thread_id: str) -> None:
        give_up(receipt)
        be_taken_over(thread_id)

    declare("quick", lambda _ctx, _: "done")
    receipt = api.submit("t", "quick", None)
    points.arm(failpoints.SETTLE_BEFORE, abort_elsewhere)

    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert settled(receipt).outcome == "aborted"
    assert settlements_in_log() == 1
    sound()


@pytest.mark.parametrize("moment", [failpoints.CLAIM_BEFORE, failpoints.JOIN_BEFORE])
def test_296_a_follower_whose_abort_was_accepted_before_the_join_is_aborted_and_never_delivered(
    declare: Declare, points: Failpoints, moment: str
) -> None:
    declare("gatherer", lambda ctx, first: [first, *ctx.followups()])
    first, second = api.submit("t", "gatherer", 1), api.submit("t", "gatherer", 2)
    points.arm(moment, lambda _: give_up(second))
    run()

    assert settled(first).result == [1]
    assert settled(second).outcome == "aborted"
    assert f"input:{second.submission_id}" not in [record.record_id for record in log()]
    sound()


# --- two threads --------------------------------------------------------------------------------


def test_295_a_thread_whose_head_cannot_run_holds_up_no_other(declare: Declare, echo: str) -> None:
    declare("missing", lambda _ctx, given: given)
    stuck, healthy = api.submit("a", "missing", 1), api.submit("b", echo, 2)
    registry.unregister("missing")

    outcomes = [result.outcome for result in run()]

    assert sorted(outcomes) == sorted([Outcome.FAILED, Outcome.RAN])
    assert settled(healthy).result == 2
    assert Submission.objects.get(pk=stuck.submission_id).state == "ready"
    declare("missing", lambda _ctx, given: given)
    run_after_a_death()
    assert settled(stuck).result == 1
