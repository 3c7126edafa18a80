"""`verify`: every row must say what the log justifies (ledger-recovery, j, with the invariants of our own).

Where a row is wrong, the log is right and its chain is sound; where the log is wrong, it was forged whole, so that
its own checks pass and only the contradiction is left.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from agents import api, log
from agents.log import EMPTY, Batch, Producer
from agents.models import (
    AbortIntent,
    Approval,
    Attempt,
    Event,
    LogBatch,
    LogRecord,
    Submission,
    Thread,
    ToolCall,
    UnknownResolution,
)
from agents.models.thread import EMPTY_DIGEST
from agents.operations import stored
from agents.records import EventReceived, NewRecord, RepairAnnotated, SubmissionSettled
from agents.recovery.evidence import gather
from maintenance import clock
from maintenance.models import ThreadMaintenance
from tests.agents_kit import run, sound

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

pytestmark = pytest.mark.django_db
"""Rolled back, not emptied: nothing here needs a second connection."""


def work(ctx: api.Context, given: Any) -> Any:
    """Everything that leaves a row: a call, a question, an event, followers, a wait that does not end."""
    if given == "wait":
        return ctx.wait_event("never")
    if given == "sleep":
        return ctx.sleep(600)
    ctx.call_tool(charge, amount=given)
    ctx.approval("refund", "refund", {"amount": given})
    ctx.wait_event("paid")
    return ctx.followups()


def charge(amount: Any) -> str:
    return f"charged {amount}"


@pytest.fixture(autouse=True)
def _thread(declare: Declare) -> None:
    """A thread that has seen everything: #1 with its follower #2, #3 aborted in the queue, #4 waiting."""
    declare("worker", work)
    first = api.submit("t", "worker", 1)
    run()
    api.submit("t", "worker", 2)
    third = api.submit("t", "worker", 3)
    api.abort(third, actor="ann", reason="a mistake")
    api.resolve_approval(first.submission_id, "approved", name="refund", actor="ann", reason="fine")
    api.send_event("t", "paid", 5, key="k")
    run()
    api.submit("t", "worker", "wait")
    run()


def broken(**options: Any) -> dict[str, str]:
    """What fails, with its detail."""
    return {check.name: check.detail for check in api.verify("t", **options).failed}


Change = Callable[[list[NewRecord]], list[NewRecord]]


def forge(change: Change) -> None:
    """Writes the whole log again as `change` makes it, in one batch whose chain is sound."""
    found = [NewRecord(record.record_id, record.content) for record in log.export("t")]
    LogRecord.objects.all().delete()
    LogBatch.objects.all().delete()
    Thread.objects.update(tail_sequence=0, tail_digest=EMPTY_DIGEST)
    with transaction.atomic():
        log.append("t", Batch("forged", change(found)), tail=EMPTY, producer=Producer("forger", 1), at=clock.now())


def replacing(family: str, **changed: Any) -> Change:
    """The records of that family with other contents."""
    return lambda records: [
        NewRecord(one.record_id, one.payload.model_copy(update=changed)) if one.payload.family == family else one
        for one in records
    ]


def ids() -> list[Any]:
    """The submissions in queue order."""
    return list(Submission.objects.order_by("queue_sequence").values_list("pk", flat=True))


def test_a_thread_that_has_seen_everything_is_sound() -> None:
    report = sound(all_settled=False)
    assert report.submissions == 4
    settled = Submission.objects.filter(state="settled").order_by("queue_sequence")
    assert list(settled.values_list("queue_sequence", "outcome")) == [
        (1, "completed"),
        (2, "completed"),
        (3, "aborted"),
    ]


def test_a_log_that_was_written_again_as_it_was_is_sound() -> None:
    """So what a forged log breaks below is what was changed in it."""
    forge(lambda records: records)
    sound(all_settled=False)


# --- Waits --------------------------------------------------------------------------------------


def test_a_wait_of_which_the_log_knows_nothing_is_found() -> None:
    Submission.objects.filter(state="suspended").update(waits_on="something else")
    assert broken().keys() == {"wait-agreement"}


def test_a_wait_of_another_kind_is_found() -> None:
    Submission.objects.filter(state="suspended").update(waits_for="child", waits_on="")
    assert broken() == {}, "children are told apart by their links"
    Submission.objects.filter(state="suspended").update(waits_for="approval", waits_on="never")
    assert broken().keys() == {"wait-agreement"}


# --- Attempts -----------------------------------------------------------------------------------


def test_an_attempt_without_an_end_of_settled_work_is_found() -> None:
    Attempt.objects.filter(submission_id=ids()[0], number=1).update(ending="", ended_at=None)
    assert broken().keys() == {"attempt-agreement"}


def test_two_attempts_without_an_end_are_found() -> None:
    first, *_, last = ids()
    Submission.objects.filter(pk=last).update(state="input_applied", waits_for="", waits_on="")
    ThreadMaintenance.objects.update(alarm_at=clock.now())
    Attempt.objects.filter(submission_id=last).update(ending="", ended_at=None)
    assert broken() == {}
    Attempt.objects.filter(submission_id=first).update(ending="", ended_at=None)
    assert "more than one attempt of the thread has no end" in broken()["attempt-agreement"]


def test_a_wrong_count_of_attempts_is_found() -> None:
    Submission.objects.filter(queue_sequence=1).update(attempts=9)
    assert broken().keys() == {"attempt-agreement"}


def test_a_missing_attempt_is_found() -> None:
    Attempt.objects.filter(number=2).delete()
    assert broken().keys() == {"attempt-agreement"}


# --- Joins --------------------------------------------------------------------------------------


def test_a_follower_that_forgot_its_host_is_found() -> None:
    Submission.objects.filter(queue_sequence=2).update(host=None)
    assert broken().keys() == {"join-agreement"}


def test_a_host_behind_its_follower_is_found() -> None:
    Submission.objects.filter(queue_sequence=2).update(host=ids()[3])
    assert broken().keys() == {"join-agreement"}
    assert "which is not before it in its thread" in broken()["join-agreement"]


def test_a_host_of_another_thread_is_found(echo: str) -> None:
    stranger = api.submit("u", echo, 1)
    Submission.objects.filter(queue_sequence=2, thread="t").update(host=stranger.submission_id)
    assert broken().keys() == {"join-agreement"}


def test_a_follower_that_settled_with_somebody_else_is_found() -> None:
    def change(records: list[NewRecord]) -> list[NewRecord]:
        joined = str(ids()[1])
        return [
            NewRecord(one.record_id, one.payload.model_copy(update={"host": str(ids()[3])}))
            if isinstance(one.payload, SubmissionSettled) and one.payload.submission == joined
            else one
            for one in records
        ]

    forge(change)
    assert broken().keys() == {"join-agreement"}


# --- Aborts -------------------------------------------------------------------------------------


def test_an_abort_by_somebody_else_than_recorded_is_found() -> None:
    AbortIntent.objects.update(author="mallory")
    assert broken().keys() == {"abort-agreement"}


def test_an_abort_whose_row_is_gone_is_found() -> None:
    AbortIntent.objects.all().delete()
    assert broken().keys() == {"abort-agreement"}


def test_an_aborted_submission_that_nobody_aborted_is_found() -> None:
    note = RepairAnnotated(submission="", decision="a note")
    forge(
        lambda records: [NewRecord("note", note) if one.payload.family == "abort-requested" else one for one in records]
    )
    assert broken().keys() == {"abort-agreement"}


# --- Calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": "prepared"}, "status prepared, the log says settled"),
        ({"status": "unknown"}, "status unknown, the log says settled"),
        ({"tries": 2}, "tries 2, the log says 1"),
        ({"kind": "idempotent"}, "kind idempotent, the log says ordinary"),
        ({"arguments": '{"amount":2}'}, "digest "),
    ],
)
def test_a_call_that_differs_from_its_records_is_found(changed: dict[str, Any], said: str) -> None:
    ToolCall.objects.update(**changed)
    found = broken()
    assert found.keys() == {"tool-call-agreement"}
    assert said in found["tool-call-agreement"]


def test_a_call_whose_row_is_gone_is_found() -> None:
    ToolCall.objects.all().delete()
    assert broken().keys() == {"tool-call-agreement"}


def test_a_call_without_a_record_is_found() -> None:
    row = ToolCall.objects.get()
    row.pk, row.call = None, "invented"
    row.save()
    assert broken().keys() == {"tool-call-agreement"}


def test_an_open_call_of_completed_work_is_found() -> None:
    ToolCall.objects.update(status="prepared")
    forge(replacing("tool-settled", call="somebody else's"))
    ToolCall.objects.create(
        **{
            **ToolCall.objects.values("submission_id", "turn", "tool", "kind", "arguments", "prepared_at").get(),
            "call": "somebody else's",
            "status": "settled",
            "updated_at": clock.now(),
        }
    )
    assert "completed-calls" in broken()


# --- Approvals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"decision": "denied"},
        {"decided_by": "mallory"},
        {"arguments": '{"amount":1000}'},
        {"digest": "f" * 64},
        {"tool": "refund everything"},
        {"name": "another"},
    ],
)
def test_an_approval_that_differs_from_its_records_is_found(changed: dict[str, Any]) -> None:
    Approval.objects.update(**changed)
    assert broken().keys() == {"approval-agreement"}


def test_an_approval_whose_row_is_gone_is_found() -> None:
    Approval.objects.all().delete()
    assert broken().keys() == {"approval-agreement"}


def test_a_decision_that_was_forged_in_the_log_is_found() -> None:
    forge(replacing("approval-decided", decision="denied"))
    assert broken().keys() == {"approval-agreement"}


# --- Events -------------------------------------------------------------------------------------


def test_an_event_that_forgot_who_took_it_is_found() -> None:
    Event.objects.update(taken_by=None)
    assert broken().keys() == {"event-agreement"}


def test_an_event_that_says_somebody_else_took_it_is_found() -> None:
    Event.objects.update(taken_by=ids()[2])
    assert broken().keys() == {"event-agreement"}


def test_an_event_marked_as_taken_that_no_run_has_is_found() -> None:
    forge(replacing("event-received", key=None))
    assert broken().keys() == {"event-agreement"}


def test_an_event_that_was_taken_twice_is_found() -> None:
    def change(records: list[NewRecord]) -> list[NewRecord]:
        once = next(one for one in records if isinstance(one.payload, EventReceived))
        return [*records, NewRecord(f"{once.record_id}:again", once.payload.model_copy(update={"name": "again"}))]

    forge(change)
    found = broken()
    assert found.keys() == {"event-agreement"}
    assert "was taken 2 times" in found["event-agreement"]


# --- Epochs -------------------------------------------------------------------------------------


def test_a_log_that_is_ahead_of_the_lease_is_found() -> None:
    ThreadMaintenance.objects.update(lease_epoch=0)
    assert broken().keys() == {"epoch-order"}


def test_a_write_of_an_earlier_lease_after_one_of_a_later_is_found() -> None:
    """The chain is sound: a writer without a fence would have left exactly this."""
    ThreadMaintenance.objects.update(lease_epoch=99)
    for epoch in (99, 98):
        late = NewRecord(f"late:{epoch}", log.read("t", after=1, limit=1)[0].content)
        with transaction.atomic():
            batch = Batch(f"late:{epoch}", [late])
            log.append("t", batch, tail=log.tail_of("t"), producer=Producer("zombie", epoch), at=clock.now())
    assert "epoch-order" in broken()


# --- Alarms -------------------------------------------------------------------------------------


def quiet() -> None:
    """Takes the alarm away, as if everything had been acknowledged."""
    row = ThreadMaintenance.objects.get()
    ThreadMaintenance.objects.update(processed=row.dirty, alarm_at=None, timer_at=None)


def test_a_thread_that_only_waits_for_others_needs_no_alarm() -> None:
    quiet()
    assert broken() == {}


def test_work_that_can_go_on_without_an_alarm_is_found() -> None:
    api.send_event("t", "never")
    quiet()
    assert broken() == {"work-is-armed": "work can go on, and no alarm is armed"}


def test_a_ready_submission_without_an_alarm_is_found(echo: str) -> None:
    api.submit("u", echo, 1)
    ThreadMaintenance.objects.filter(pk="u").update(processed=2, alarm_at=None)
    assert [check.name for check in api.verify("u").failed] == ["work-is-armed"]


def test_a_thread_that_maintenance_does_not_know_is_found(echo: str) -> None:
    ThreadMaintenance.objects.all().delete()
    assert broken().keys() == {"work-is-armed"}


def test_a_timer_without_an_alarm_before_it_is_found() -> None:
    api.submit("u", "worker", "sleep")
    run()
    assert api.verify("u").ok
    row = ThreadMaintenance.objects.get(pk="u")
    assert row.alarm_at is not None
    ThreadMaintenance.objects.filter(pk="u").update(alarm_at=row.alarm_at + timedelta(seconds=1))
    assert [check.name for check in api.verify("u").failed] == ["work-is-armed"]


def test_a_thread_that_moves_meanwhile_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    api.send_event("t", "never")
    quiet()

    def slowly(thread_id: str) -> Any:
        found = gather(thread_id)
        ThreadMaintenance.objects.update(alarm_seq=99)
        return found

    monkeypatch.setattr("agents.operations.arming.gather", slowly)
    (check,) = [check for check in api.verify("t").checks if check.name == "work-is-armed"]
    assert (check.status, check.detail) == ("skipped", "the thread moved while it was looked at")


# --- While work goes on -------------------------------------------------------------------------


def test_rows_that_change_while_we_look_are_not_accused(monkeypatch: pytest.MonkeyPatch, declare: Declare) -> None:
    """Calls, questions, events, joins and aborts that happen between the rows and the log."""
    api.submit("u", "worker", 1)
    run()
    read = stored.read

    def and_then(thread_id: str, still: int) -> Any:
        found = read(thread_id, still)
        head = Submission.objects.get(thread="u", queue_sequence=1)
        api.submit("u", "worker", 2)
        api.abort(api.submit("u", "worker", 3), actor="ann", reason="a mistake")
        api.resolve_approval(head.pk, "denied", name="refund", actor="ann", reason="no")
        api.send_event("u", "paid", key="k")
        run()
        return found

    monkeypatch.setattr(stored, "read", and_then)
    report = api.verify("u")
    assert report.ok, report.failed
    assert api.progress("u", limit=1)
    assert Submission.objects.filter(thread="u", state="settled").count() == 3


def test_a_call_that_ends_while_we_look_is_not_accused(monkeypatch: pytest.MonkeyPatch, declare: Declare) -> None:
    def slow() -> None:
        """Looks at its own thread from the inside, twice: with the call open, and just before its end."""
        assert api.verify("u").ok

    declare("slow", lambda ctx, _: ctx.call_tool(slow))
    api.submit("u", "slow", None)
    run()
    assert api.verify("u", all_settled=True).ok


def test_a_call_that_is_answered_while_we_look_is_not_accused(
    monkeypatch: pytest.MonkeyPatch, declare: Declare
) -> None:
    def cut_off() -> None:
        raise api.OutcomeUnknown("no answer came")

    declare("unlucky", lambda ctx, _: ctx.call_tool(cut_off, name="pay"))
    receipt = api.submit("u", "unlucky", None)
    run()
    read = stored.read

    def and_then(thread_id: str, still: int) -> Any:
        found = read(thread_id, still)
        api.resolve_unknown(receipt, "pay", "completed-with-result", result=1, reason="looked")
        run()
        return found

    monkeypatch.setattr(stored, "read", and_then)
    report = api.verify("u")
    assert report.ok, report.failed
    assert ToolCall.objects.get(submission_id=receipt.submission_id).status == "settled"


def test_unknown_calls_and_their_answers_agree(declare: Declare) -> None:
    def cut_off() -> None:
        raise api.OutcomeUnknown("no answer came")

    declare("unlucky", lambda ctx, _: ctx.call_tool(cut_off, name="pay"))
    receipt = api.submit("u", "unlucky", None)
    run()
    assert api.verify("u").ok
    api.resolve_unknown(receipt, "pay", "completed-with-result", result=1, actor="ann", reason="looked")
    assert api.verify("u").ok
    run()
    assert api.verify("u", all_settled=True).ok
    assert UnknownResolution.objects.count() == 1
