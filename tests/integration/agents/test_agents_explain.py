"""`explain`: the decision of the next pass and one sentence that a person understands (ledger-recovery, k; R-01)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone

from agents import api
from agents.errors import RetryLater, UnknownSubmission, UnknownThread
from agents.models import Approval, Attempt, LogRecord, Submission, ToolCall
from agents.operations import findings
from agents.operations.explain import PREDICTIONS
from agents.recovery import execute
from agents.recovery.classify import Decision
from agents.states import Ending
from maintenance import clock
from maintenance.models import OperatorAction, ThreadMaintenance
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, run
from tests.explain_kit import SECRET, sentence, submit, waiting_for_approval
from tests.statements import counted_statements

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


# --- What it says -------------------------------------------------------------------------------


def test_an_approval_says_what_is_asked_without_any_value(declare: Declare) -> None:
    receipt = waiting_for_approval(declare)
    Approval.objects.update(requested_at=clock.now() - timedelta(hours=2))
    said = sentence(receipt)
    assert said == (
        "Waits for approval of refund(amount: number, card: text, …: list, since: nothing), "
        "asked 2 h ago by agent 'worker'"
    )


def test_an_approval_that_expires_says_when(declare: Declare) -> None:
    receipt = waiting_for_approval(declare, expires_in=600)
    at = Approval.objects.get().expires_at
    assert at is not None
    assert f", until {timezone.localtime(at):%H:%M:%S} (in 9 min" in sentence(receipt)


def test_an_event_says_which_and_since_when(declare: Declare) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.wait_event("paid"))
    run()
    Attempt.objects.update(ended_at=clock.now() - timedelta(minutes=5))
    assert sentence(receipt) == "Waits for event 'paid', asked for 5 min ago"


def test_a_timer_says_until_when(declare: Declare) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.sleep(3 * 24 * 3600))
    run()
    until = Submission.objects.get().wake_at
    assert until is not None
    assert f"Sleeps until {timezone.localtime(until):%Y-%m-%d %H:%M:%S} (in 2 d 23 h)" == sentence(receipt)


def later(ctx: api.Context, _: Any) -> None:
    raise RetryLater(SECRET, after=600, tag="RateLimited")


def test_a_retry_says_which_try_when_and_why(declare: Declare) -> None:
    receipt = submit(declare, later)
    run()
    at = Submission.objects.get().wake_at
    assert at is not None
    said = sentence(receipt)
    assert said.startswith(f"Waits for try 2 of 10 at {timezone.localtime(at):%H:%M:%S} (in ")
    assert said.endswith("(RateLimited)")


def test_a_follower_says_behind_whom_it_waits_and_what_that_one_does(declare: Declare, echo: str) -> None:
    api.submit("t", echo, 0)
    submit(declare, lambda ctx, _: ctx.wait_event("paid"))
    run()
    follower = api.submit("t", echo, 1)
    assert sentence(follower).startswith("Queued behind submission #2, which waits for event 'paid', asked for 0 s ago")


def test_an_unknown_call_says_who_has_to_answer_what(declare: Declare) -> None:
    def charge(card: str) -> None:
        raise api.OutcomeUnknown("no answer came")

    receipt = submit(declare, lambda ctx, given: ctx.call_tool(charge, card=given["password"]))
    run()
    ToolCall.objects.update(updated_at=clock.now() - timedelta(hours=3))
    name = ToolCall.objects.get().call
    assert sentence(receipt) == (
        f"Waits for a person to say what became of call {name!r} of tool 'charge', unknown for 3 h (no answer came)"
    )


def die_in_step(points: Failpoints, times: int) -> None:
    for _ in range(times):
        points.crash_at("step:before-append")
        ThreadMaintenance.objects.update(alarm_at=clock.now())
        with pytest.raises(Crash):
            deliver("t")
        travel(LEASE)


def test_lost_workers_are_counted_with_what_is_left(declare: Declare, points: Failpoints) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.step("heavy", lambda: SECRET))
    die_in_step(points, 3)
    said = sentence(receipt)
    assert said.startswith("Lost its worker 3 times without recorded progress; 7 attempts are left; ")


def test_progress_forgets_the_losses_before_it(declare: Declare, points: Failpoints) -> None:
    def handler(ctx: api.Context, _: Any) -> Any:
        ctx.step("light", lambda: 1)
        return ctx.step("heavy", lambda: 2)

    receipt = submit(declare, handler)
    die_in_step(points, 2)
    points.crash_at("step:after-step-append")
    ThreadMaintenance.objects.update(alarm_at=clock.now())
    with pytest.raises(Crash):
        deliver("t")
    travel(LEASE)
    assert sentence(receipt).startswith("Stopped at a boundary")
    tries = api.explain(receipt).evidence.attempts
    assert tries is not None
    assert (tries.begun, tries.fruitless, tries.left) == (3, 0, 10)


def test_used_up_attempts_say_what_comes_of_it(declare: Declare, points: Failpoints, settings: Settings) -> None:
    settings.AGENTS = {"RETRY_BUDGET": 2}
    receipt = submit(declare, lambda ctx, _: ctx.step("heavy", lambda: 1))
    die_in_step(points, 2)
    found = api.explain(receipt)
    assert (found.decision, found.disposition) == ("settle-exhausted", "repaired")
    assert "2 attempts ended without recorded progress (2 of them with their worker)" in found.sentence


def test_a_running_attempt_says_where_it_runs_and_what_it_calls(declare: Declare) -> None:
    seen: list[api.Explanation] = []

    def charge() -> None:
        seen.append(api.explain(receipt))

    receipt = submit(declare, lambda ctx, _: ctx.call_tool(charge, name="pay"))
    run()
    (found,) = seen
    assert found.sentence.startswith("Runs: attempt 1, for 0 s, in pid ")
    assert found.sentence.endswith(", inside call 'pay' of tool 'charge'")
    assert found.thread_state == "running"
    tries = found.evidence.attempts
    assert tries is not None
    assert (tries.fruitless, tries.lost) == (0, 0), "what runs has not ended"


def test_an_abort_says_who_asked_and_what_it_waits_for(declare: Declare) -> None:
    receipt = waiting_for_approval(declare)
    api.abort(receipt, actor="ann", reason="a mistake")
    found = api.explain(receipt)
    assert found.sentence.startswith("Was aborted by ann 0 s ago (a mistake); it is settled as such; the next pass is")
    assert (found.decision, found.disposition) == ("settle-aborted", "repaired")


def test_an_answer_that_is_there_says_that_it_goes_on(declare: Declare) -> None:
    receipt = waiting_for_approval(declare)
    api.resolve_approval(receipt, "approved", name="refund", reason="fine")
    assert sentence(receipt).startswith(
        "Has what it waited for (approval 'refund') and goes on; the next pass is due now"
    )


def test_what_is_over_says_how_it_ended(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    assert sentence(receipt) == "Settled as completed 0 s ago, after 1 attempt"


def test_a_follower_that_joined_says_with_whom_it_settles(declare: Declare) -> None:
    seen: list[str] = []

    def handler(ctx: api.Context, given: Any) -> None:
        ctx.followups()
        seen.append(sentence(follower))

    submit(declare, handler)
    follower = api.submit("t", "worker", 2)
    run()
    assert seen == ["Has joined the run of submission #1; they settle together"]


# --- What it promises ---------------------------------------------------------------------------


def everything(declare: Declare) -> list[api.Receipt]:
    """Submissions in many states, on threads of their own, each with its followers."""
    made = []

    def cut_off() -> None:
        raise api.OutcomeUnknown("no answer came")

    handlers: dict[str, Callable[[api.Context, Any], Any]] = {
        "approval": lambda ctx, _: ctx.approval("refund", "refund", {"card": SECRET}),
        "event": lambda ctx, _: ctx.wait_event("paid"),
        "timer": lambda ctx, _: ctx.sleep(600),
        "retry": later,
        "unknown": lambda ctx, _: ctx.call_tool(cut_off),
    }
    for name, handler in handlers.items():
        declare(name, handler)
        made.append(api.submit(name, name, {"password": SECRET}))
    run()
    return [*made, *(api.submit(name, name, {"password": SECRET}) for name in handlers)]


def test_r01_244_explaining_writes_nothing(declare: Declare) -> None:
    receipts = everything(declare)
    before = stored()
    with counted_statements() as statements:
        for receipt in receipts:
            api.explain(receipt)
            api.explain_thread(receipt.thread_id)
    assert statements.writes() == []
    assert statements.transactions == 0
    assert stored() == before


def stored() -> list[Any]:
    """Everything, byte by byte."""
    models = (ThreadMaintenance, Submission, Attempt, ToolCall, Approval, LogRecord, OperatorAction)
    return [list(model._default_manager.order_by("pk").values()) for model in models]


def test_no_payload_argument_or_error_text_is_ever_shown(declare: Declare) -> None:
    for receipt in everything(declare):
        shown = json.dumps(asdict(api.explain(receipt)), cls=DjangoJSONEncoder)
        assert SECRET not in shown


def test_what_is_predicted_is_what_the_next_pass_reports(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, points: Failpoints
) -> None:
    receipts = everything(declare)
    declare("dying", lambda ctx, _: ctx.step("s", lambda: 1))
    dying = api.submit("dying", "dying", None)
    points.crash_at("step:before-append")
    with pytest.raises(Crash):
        deliver("dying")
    travel(LEASE)
    api.abort(receipts[-1], reason="enough")
    api.send_event("event", "paid")
    predicted = {
        str(found.submission_id): (found.decision, found.disposition)
        for receipt in [*receipts, dying]
        for found in api.explain_thread(receipt.thread_id)
    }
    reported: dict[str, tuple[str, str]] = {}
    recover = execute.recover

    def noted(work: Any) -> Any:
        reports = recover(work)
        for report in reports:
            reported.setdefault(report.submission_id, (report.decision, report.disposition))
        return reports

    monkeypatch.setattr("agents.runtime.execute.recover", noted)
    # A generation for each thread, so that recovery looks at those that rest too.
    ThreadMaintenance.objects.update(dirty=99, alarm_at=clock.now())
    run()
    assert reported == predicted
    assert {decision for decision, _ in predicted.values()} >= {
        "apply-input",
        "await-answer",
        "await-unknown-resolution",
        "resume-from-last-step",
        "resume-suspended",
        "settle-aborted",
    }


def test_every_decision_has_a_prediction_and_a_meaning() -> None:
    assert set(PREDICTIONS) == set(Decision)
    assert {disposition for disposition, _ in PREDICTIONS.values()} == {"repaired", "deferred", "unknown", "none"}


def test_244_an_unknown_lane_is_explained_with_its_unresolved_call(declare: Declare) -> None:
    (receipt,) = [one for one in everything(declare) if one.thread_id == "unknown" and one.queue_sequence == 1]
    found = api.explain(receipt)
    assert (found.decision, found.disposition) == ("await-unknown-resolution", "unknown")
    (call,) = found.evidence.calls
    assert (call.tool, call.status, call.resolved) == ("cut_off", "unknown", False)
    api.resolve_unknown(receipt, call.call, "never-started", reason="looked")
    found = api.explain(receipt)
    assert (found.decision, found.evidence.calls[0].resolved) == ("apply-unknown-resolutions", True)


def test_r01_a_settled_submission_needs_no_action_and_its_thread_has_none_to_explain(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    found = api.explain(receipt)
    assert (found.decision, found.disposition, found.outcome) == ("no-action", "none", "completed")
    assert api.explain_thread("t") == []


def test_a_settled_submission_costs_one_look_at_its_row(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    with counted_statements() as statements:
        api.explain(receipt)
    assert [sql for sql in statements.sql if "logrecord" in sql] == []
    assert len([sql for sql in statements.sql if "submission" in sql]) == 1


def test_a_long_queue_costs_no_more_statements_than_a_short_one(declare: Declare) -> None:
    submit(declare, lambda ctx, _: ctx.wait_event("paid"))
    run()
    counts = []
    for _ in range(2):
        api.submit("t", "worker", None)
        with counted_statements() as statements:
            api.explain_thread("t")
        counts.append(len(statements))
    assert counts[0] == counts[1]


def test_a_submission_that_settles_while_we_look_is_explained_as_settled(
    echo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = api.submit("t", echo, 1)
    around = findings.around

    def slowly(thread_id: str) -> Any:
        run()
        return around(thread_id)

    monkeypatch.setattr(findings, "around", slowly)
    found = api.explain(receipt)
    assert found.decision in {"no-action", "apply-input"}


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(UnknownSubmission):
        api.explain("0190b6f0-0000-7000-8000-000000000000")
    with pytest.raises(UnknownThread):
        api.explain_thread("nowhere")


def test_ages_are_whole_seconds_and_never_negative(declare: Declare) -> None:
    receipt = waiting_for_approval(declare)
    Submission.objects.update(created_at=clock.now() - timedelta(seconds=90, milliseconds=900))
    Attempt.objects.update(ended_at=clock.now() + timedelta(seconds=5))
    found = api.explain(receipt)
    assert (found.age_seconds, found.waiting_seconds) == (90, 0)


def test_only_ends_that_nobody_asked_for_are_counted(declare: Declare) -> None:
    receipt = submit(declare, later)
    run()
    Submission.objects.update(attempts=4)
    for number, ending in enumerate((Ending.YIELDED, Ending.FAILED, Ending.LOST), start=2):
        Attempt.objects.create(
            submission_id=receipt.submission_id,
            number=number,
            epoch=number,
            owner="somewhere",
            began_after=2,
            started_at=clock.now(),
            ended_at=clock.now(),
            ending=ending,
        )
    tries = api.explain(receipt).evidence.attempts
    assert tries is not None
    assert (tries.fruitless, tries.lost) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("null", ""),
        ("[1]", "list"),
        ('"hunter2"', "text"),
        (
            '{"a":1,"b":true,"c":{},"d":1.5,"e":[],"f":1}',
            "a: number, b: yes or no, c: object, d: number, e: list, and 1 more",
        ),
        ('{"not a name":1}', "…: number"),
    ],
)
def test_arguments_are_named_and_never_shown(arguments: str, shown: str) -> None:
    assert findings.named(arguments) == shown
