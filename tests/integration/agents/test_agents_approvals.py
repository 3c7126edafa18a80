"""Approvals (ledger-recovery, f.1; scenarios K; field reports N)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.db import connection

from agents import approvals
from agents.api import Context, settlement, submit
from agents.errors import ApprovalConflict, UnknownApproval
from agents.models import Approval, ApprovalDecision, Submission
from maintenance.testing import Crash, Failpoints, deliver, run_due_passes, travel
from tests.agents_kit import agents_database, families, run_after_a_death, settled, sound
from tests.factories import row_of

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database

APPROVED, DENIED = ApprovalDecision.APPROVED, ApprovalDecision.DENIED


@pytest.fixture
def asker(declare: Declare) -> str:
    """An agent that asks before it refunds, within a minute, and says what it was told."""

    def handler(ctx: Context, amount: Any) -> Any:
        decision = ctx.approval("refund", "refund", {"amount": amount}, expires_in=60)
        return [decision.decision, decision.resolver, decision.reason]

    declare("asker", handler)
    return "asker"


def asked(asker: str) -> Any:
    receipt = submit("t", asker, 7)
    run_due_passes()
    return receipt


def decide(decision: ApprovalDecision = APPROVED, author: str = "ann", reason: str = "fine", **more: Any) -> Any:
    return approvals.decide(Approval.objects.get().pk, decision, author=author, reason=reason, **more)


def voiced(act: Callable[[], Any]) -> None:
    """Does it, as a failpoint's action."""
    act()


def test_132_an_undecided_approval_suspends_and_cannot_be_claimed(asker: str) -> None:
    receipt = asked(asker)
    deliver("t", forced=True)
    row = Submission.objects.get()
    assert (row.state, row.waits_for, row.waits_on) == ("suspended", "approval", "refund")
    assert settlement(receipt) is None
    assert families() == ["thread-created", "user-input", "approval-requested"]


@pytest.mark.parametrize("decision", [APPROVED, DENIED])
def test_133_134_a_decision_wakes_the_run_and_becomes_a_record(asker: str, decision: ApprovalDecision) -> None:
    receipt = asked(asker)
    decide(decision)
    run_due_passes()
    assert settled(receipt).result == [decision, "ann", "fine"]
    assert families().count("approval-decided") == families().count("approval-requested") == 1
    sound()


def test_135_the_same_decision_again_keeps_the_first_reason(asker: str) -> None:
    asked(asker)
    decide(reason="first")
    assert decide(author="bob", reason="second").reason == "first"


def test_135_another_decision_is_refused_and_names_who_decided(asker: str) -> None:
    asked(asker)
    decide()
    with pytest.raises(ApprovalConflict, match="ann has decided: approved"):
        decide(DENIED, author="bob")


def test_a_decision_that_changes_nothing_leaves_no_generation(asker: str) -> None:
    asked(asker)
    decide()
    dirty = row_of().dirty
    decide(author="bob")
    assert row_of().dirty == dirty


def test_a_decision_about_something_else_than_was_shown_is_refused(asker: str) -> None:
    asked(asker)
    with pytest.raises(ApprovalConflict, match="something else"):
        decide(digest="0" * 64)
    assert Approval.objects.get().decision == ""


def test_n2_an_approval_that_nobody_decides_expires_and_wakes_the_run(asker: str, frozen: FrozenClock) -> None:
    receipt = asked(asker)
    assert row_of().timer_at == frozen.at + timedelta(seconds=60)
    frozen.at += timedelta(seconds=60)
    run_due_passes()
    assert settled(receipt).result[0] == "expired"
    assert Approval.objects.get().decision == "expired"
    sound()


def test_a_decision_after_the_expiry_is_refused(asker: str, frozen: FrozenClock) -> None:
    asked(asker)
    frozen.at += timedelta(seconds=60)
    with pytest.raises(ApprovalConflict, match="expired"):
        decide()


def test_an_unknown_approval_is_a_typed_error() -> None:
    with pytest.raises(UnknownApproval):
        approvals.decide(UUID(int=1), APPROVED, author="ann", reason="fine")


@pytest.mark.parametrize("place", ["suspend:before", "suspend:written", "suspend:after"])
def test_136_137_a_crash_around_the_suspension_asks_once(asker: str, points: Failpoints, place: str) -> None:
    receipt = submit("t", asker, 7)
    points.crash_at(place)
    with pytest.raises(Crash):
        run_due_passes()
    run_after_a_death()
    decide()
    run_due_passes()
    assert settled(receipt).outcome == "completed"
    assert families().count("approval-requested") == 1
    sound()


@pytest.mark.parametrize("place", ["answer:before", "answer:written", "answer:after", "wake:before", "wake:after"])
def test_a_crash_after_the_decision_records_it_once(asker: str, points: Failpoints, place: str) -> None:
    receipt = asked(asker)
    decide()
    points.crash_at(place)
    with pytest.raises(Crash):
        run_due_passes()
    run_after_a_death()
    assert settled(receipt).result == ["approved", "ann", "fine"]
    assert families().count("approval-decided") == 1
    sound()


def test_a_decision_between_request_and_finish_is_not_lost(asker: str, points: Failpoints) -> None:
    receipt = submit("t", asker, 7)
    points.arm("maintenance:finish:before", lambda _: voiced(decide))
    run_due_passes()
    travel(timedelta(seconds=1))
    run_due_passes()
    assert settled(receipt).outcome == "completed"


def test_138_two_questions_are_asked_one_after_the_other(declare: Declare) -> None:
    declare("two", lambda ctx, _: [bool(ctx.approval(name, "pay", name)) for name in ("a", "b")])
    receipt = submit("t", "two", None)
    for _ in range(2):
        run_due_passes()
        undecided = Approval.objects.get(decision="")
        approvals.decide(undecided.pk, APPROVED, author="ann", reason="fine")
    run_due_passes()
    assert settled(receipt).result == [True, True]


@pytest.mark.postgres
def test_n1_of_three_people_at_once_one_decides_and_the_others_are_told(asker: str) -> None:
    receipt = asked(asker)
    wanted = [APPROVED, APPROVED, DENIED]

    def vote(number: int) -> str:
        try:
            return str(decide(wanted[number], author=f"person {number}").decision)
        except ApprovalConflict as conflict:
            return conflict.message
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as people:
        answers = list(people.map(vote, range(3)))
    run_due_passes()

    stands = Approval.objects.get().decision
    assert settled(receipt).result[0] == stands
    assert all(answer == stands or f"has decided: {stands}" in answer for answer in answers)
