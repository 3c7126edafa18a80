"""`verify`: every row must say what the log justifies (ledger-recovery, j, with the invariants of our own).

Where a row is wrong, the log is right and its chain is sound; where the log is wrong, it was forged whole, so that
its own checks pass and only the contradiction is left.
"""

from __future__ import annotations

from typing import Any

import pytest

from agents import api
from agents.models import AbortIntent, Approval, Attempt, Event, Submission, ToolCall
from agents.records import EventReceived, NewRecord, RepairAnnotated, SubmissionSettled
from maintenance import clock
from maintenance.models import ThreadMaintenance
from tests.agents_kit import sound
from tests.agreement_kit import broken, everything, forge, ids, replacing

__all__ = ["everything"]

pytestmark = pytest.mark.django_db
"""Rolled back, not emptied: nothing here needs a second connection."""


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
