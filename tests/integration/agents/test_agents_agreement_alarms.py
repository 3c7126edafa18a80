"""`verify`: epochs and alarms agree with the log, and what moves while we look is not accused (ledger-recovery, j)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from agents import api, log
from agents.log import Batch, Producer
from agents.models import Submission, ToolCall, UnknownResolution
from agents.operations import stored
from agents.records import NewRecord
from agents.recovery.evidence import gather
from maintenance import clock
from maintenance.models import ThreadMaintenance
from tests.agents_kit import run
from tests.agreement_kit import broken, everything

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

__all__ = ["everything"]

pytestmark = pytest.mark.django_db
"""Rolled back, not emptied: nothing here needs a second connection."""


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
