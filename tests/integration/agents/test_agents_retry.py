"""`retry`: a pass at once, with an author and a reason; it overrides nothing (ledger-recovery, k; R-03, R-04; F27)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agents import api
from agents.errors import RetryLater, RetryRefused, UnknownSubmission
from agents.models import Attempt, LogRecord, Submission
from maintenance import clock
from maintenance.models import OperatorAction, ThreadMaintenance
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, families, run, settled, sound
from tests.factories import live_lease, row_of

if TYPE_CHECKING:
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


def submit(declare: Declare, handler: Callable[[api.Context, Any], Any]) -> api.Receipt:
    declare("worker", handler)
    return api.submit("t", "worker", None)


def retry(receipt: api.Receipt) -> api.Retried:
    return api.retry(receipt, actor="ann", reason="it should work now")


def refusal(receipt: api.Receipt) -> RetryRefused:
    """Why a retry is refused; it must leave everything as it was."""
    before = (row_of().dirty, row_of().alarm_at, LogRecord.objects.count(), OperatorAction.objects.count())
    with pytest.raises(RetryRefused) as refused:
        retry(receipt)
    assert (row_of().dirty, row_of().alarm_at, LogRecord.objects.count(), OperatorAction.objects.count()) == before
    return refused.value


def backed_off() -> None:
    """The thread waits in a failure backoff."""
    ThreadMaintenance.objects.update(alarm_at=clock.now() + timedelta(minutes=1), failures=5)


def test_r04_f27_a_retry_keeps_who_and_why_and_wakes_with_a_new_generation(echo: str, sent: list[Hint]) -> None:
    receipt = api.submit("t", echo, 1)
    backed_off()
    sent.clear()
    generation = row_of().dirty

    made = retry(receipt)

    assert (made.thread_id, made.decision, made.generation) == ("t", "apply-input", generation + 1)
    assert row_of().dirty == generation + 1
    assert row_of().alarm_at is not None
    assert len(run()) == 1
    assert settled(receipt).result == 1
    assert [hint.thread_id for hint in sent] == ["t"]
    action = OperatorAction.objects.get()
    assert (action.action, action.actor, action.reason, action.thread_id) == (
        "retry",
        "ann",
        "it should work now",
        "t",
    )
    assert action.before["decision"] == "apply-input"
    assert action.after["generation"] == generation + 1


def test_249_a_retry_goes_on_where_a_dead_worker_stopped(declare: Declare, points: Failpoints) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.step("one", lambda: 1))
    points.crash_at("input:after-canonical-append")
    with pytest.raises(Crash):
        deliver("t")
    travel(LEASE)
    backed_off()
    assert retry(receipt).decision == "resume-from-last-step"
    run()
    assert settled(receipt).result == 1
    sound()


def test_250_r03_settled_work_is_not_tried_again(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    assert refusal(receipt).refusal == "settled"


def test_250_r03_a_question_to_a_person_is_not_answered_by_a_retry(declare: Declare) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.approval("refund", "refund").decision)
    run()
    refused = refusal(receipt)
    assert refused.refusal == "await-approval-decision"
    assert "waits for approval of refund()" in refused.message
    assert "approve or deny" in refused.message


def test_250_r03_an_unknown_call_is_not_answered_by_a_retry(declare: Declare) -> None:
    def pay() -> None:
        raise api.OutcomeUnknown("no answer came")

    receipt = submit(declare, lambda ctx, _: ctx.call_tool(pay))
    run()
    refused = refusal(receipt)
    assert refused.refusal == "await-unknown-resolution"
    assert "of tool 'pay'" in refused.message


def test_what_has_its_answer_may_be_tried_at_once(declare: Declare) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.approval("refund", "refund").decision)
    run()
    api.resolve_approval(receipt, "approved", name="refund", reason="fine")
    backed_off()
    assert retry(receipt).decision == "resume-suspended"
    run()
    assert settled(receipt).result == "approved"


def test_nothing_begins_before_what_the_other_side_asked_for(declare: Declare) -> None:
    """Neither a retry nor a forced pass shortens a Retry-After: the pass comes, looks, and leaves it."""

    def handler(ctx: api.Context, _: Any) -> None:
        raise RetryLater("too many requests", after=600, tag="RateLimited")

    receipt = submit(declare, handler)
    run()
    before = Submission.objects.values().get()
    made = retry(receipt)
    assert made.decision == "await-answer"
    assert "Waits for try 2 of 10 at" in made.sentence
    results = run()
    assert len(results) == 1
    assert Submission.objects.values().get() == before
    assert Attempt.objects.count() == 1
    assert api.force_pass("t", reason="please")
    run()
    assert Submission.objects.values().get() == before
    due = row_of().alarm_at
    assert due is not None
    assert due == before["wake_at"]
    assert families().count("retry-scheduled") == 1


def test_used_up_attempts_are_not_refilled(declare: Declare, points: Failpoints, settings: Any) -> None:
    settings.AGENTS = {"RETRY_BUDGET": 1}
    receipt = submit(declare, lambda ctx, _: ctx.step("one", lambda: 1))
    points.crash_at("step:before-append")
    with pytest.raises(Crash):
        deliver("t")
    travel(LEASE)
    assert retry(receipt).decision == "settle-exhausted"
    run()
    found = settled(receipt)
    assert found.failure is not None
    assert found.failure.error_tag == "AttemptsExhausted"
    sound()


def test_a_retry_never_breaks_a_live_lease(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    ThreadMaintenance.objects.update(**live_lease())
    token = row_of().lease_token
    retry(receipt)
    assert row_of().lease_token == token
    assert run() == []
    assert row_of().is_dirty, "whoever holds the thread finds a newer generation at its end"


def test_a_retry_of_a_follower_wakes_its_thread(declare: Declare, echo: str) -> None:
    submit(declare, lambda ctx, _: ctx.wait_event("paid"))
    follower = api.submit("t", echo, 1)
    run()
    assert retry(follower).sentence.startswith("Queued behind submission #1, which waits for event 'paid'")
    run()
    assert settled_nothing()


def settled_nothing() -> bool:
    return not Submission.objects.filter(state="settled").exists()


def test_a_retry_on_a_quiet_thread_makes_it_quiet_again_after_one_pass(declare: Declare) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.wait_event("paid"))
    run()
    records = families()
    retry(receipt)
    assert len(run()) == 1
    assert (row_of().alarm_at, row_of().is_dirty, families()) == (None, False, records)


def test_a_paused_thread_stays_paused_and_the_retry_says_so(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    ThreadMaintenance.objects.update(paused_at=clock.now())
    assert retry(receipt).sentence == "Paused by an operator"
    assert run() == []


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(UnknownSubmission):
        api.retry("0190b6f0-0000-7000-8000-000000000000", reason="r")
