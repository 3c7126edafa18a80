"""`verify`: every invariant that it states fails when what is stored breaks it (ledger-recovery, j)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from agents import api
from agents.errors import UnknownThread
from agents.models import LogBatch, LogRecord, Submission, Thread
from agents.operations import stored
from tests.agents_kit import agents_database, run
from tests.statements import counted_statements

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


@pytest.fixture(autouse=True)
def _settled_thread(declare: Declare) -> None:
    """A thread with two settled submissions, the second with a step."""
    declare("tried", lambda ctx, given: ctx.step("one", lambda: given) if given else None)
    for given in (0, 1):
        api.submit("t", "tried", given)
    run()


def broken(**options: Any) -> set[str]:
    """The names of the checks that fail."""
    return {check.name for check in api.verify("t", **options).failed}


def record(family: str, place: int = 0) -> LogRecord:
    return LogRecord.objects.filter(family=family).order_by("sequence")[place]


def rewrite(row: LogRecord, old: str, new: str) -> None:
    assert old in row.text
    LogRecord.objects.filter(pk=row.pk).update(text=row.text.replace(old, new))


def renumber(first: LogRecord, second: LogRecord) -> None:
    """Exchanges the places of two records."""
    LogRecord.objects.filter(pk=first.pk).update(sequence=1_000)
    LogRecord.objects.filter(pk=second.pk).update(sequence=first.sequence)
    LogRecord.objects.filter(pk=first.pk).update(sequence=second.sequence)


def test_a_sound_thread_passes_every_check_and_says_which_it_skipped() -> None:
    report = api.verify("t", all_settled=True)

    assert report.ok
    assert (report.records, report.submissions) == (6, 2)
    assert {check.name: check.status for check in report.checks} == {
        "schema-round-trip": "passed",
        "record-identity": "passed",
        "sequence-contiguity": "passed",
        "digest-chain": "passed",
        "epoch-order": "passed",
        "fifo-input-order": "passed",
        "fifo-settlement-order": "passed",
        "terminal-uniqueness": "passed",
        "ledger-canonical-agreement": "passed",
        "wait-agreement": "passed",
        "attempt-agreement": "passed",
        "join-agreement": "passed",
        "abort-agreement": "passed",
        "tool-call-agreement": "passed",
        "completed-calls": "passed",
        "approval-agreement": "passed",
        "event-agreement": "passed",
        "work-is-armed": "passed",
        "all-settled": "passed",
        "checkpoint-binding": "skipped",
    }


def test_an_unknown_thread_is_an_error_and_no_report() -> None:
    with pytest.raises(UnknownThread):
        api.verify("nowhere")


def test_a_changed_output_breaks_the_chain() -> None:
    rewrite(record("step-settled"), '"output":1', '"output":2')
    assert broken() == {"digest-chain"}


def test_a_changed_time_breaks_the_chain() -> None:
    rewrite(record("step-settled"), '"at":"20', '"at":"19')
    assert broken() == {"digest-chain"}


def test_a_text_that_is_not_canonical_is_found() -> None:
    rewrite(record("step-settled"), '"output":1', '"output": 1')
    assert broken() == {"schema-round-trip", "digest-chain"}


@pytest.mark.parametrize("text", ["{}", "not json", '{"at":1,"family":"gossip","id":"x","payload":{},"v":1}'])
def test_a_text_that_cannot_be_read_is_found(text: str) -> None:
    LogRecord.objects.filter(pk=record("step-settled").pk).update(text=text)
    assert {"schema-round-trip", "digest-chain"} <= broken()


def test_a_column_that_says_something_else_than_the_text_is_found() -> None:
    LogRecord.objects.filter(pk=record("step-settled").pk).update(record_id="step:other")
    assert broken() == {"schema-round-trip"}


def test_a_missing_record_is_found() -> None:
    record("step-settled").delete()
    assert broken() == {"sequence-contiguity", "digest-chain"}


def test_a_log_that_was_cut_off_is_found() -> None:
    record("submission-settled", 1).delete()
    assert broken() == {
        "sequence-contiguity",
        "digest-chain",
        "terminal-uniqueness",
        "ledger-canonical-agreement",
    }


def test_a_tail_that_the_thread_does_not_know_is_found() -> None:
    Thread.objects.update(tail_digest="f" * 64)
    assert broken() == {"digest-chain"}


@pytest.mark.parametrize("column", ["producer", "content_digest", "previous_digest"])
def test_f35_a_changed_batch_is_found(column: str) -> None:
    LogBatch.objects.filter(last_sequence=2).update(**{column: "f" * 64})
    assert broken() == {"digest-chain"}


def test_an_epoch_that_was_changed_is_found() -> None:
    LogBatch.objects.filter(last_sequence=2).update(epoch=99)
    assert broken() == {"digest-chain", "epoch-order"}


def test_inputs_out_of_the_queues_order_are_found() -> None:
    renumber(record("user-input", 0), record("user-input", 1))
    assert {"fifo-input-order", "ledger-canonical-agreement"} <= broken()


def test_settlements_out_of_the_queues_order_are_found() -> None:
    renumber(record("submission-settled", 0), record("submission-settled", 1))
    assert "fifo-settlement-order" in broken()


def test_a_second_settlement_of_a_submission_is_found() -> None:
    first, second = record("submission-settled", 0), record("submission-settled", 1)
    LogRecord.objects.filter(pk=second.pk).update(text=first.text)
    assert "terminal-uniqueness" in broken()


def test_255_a_row_that_is_settled_without_a_record_is_found() -> None:
    record("submission-settled").delete()
    assert {"terminal-uniqueness", "ledger-canonical-agreement"} <= broken()


def test_248_a_record_id_that_occurs_twice_is_found_and_named() -> None:
    first, second = record("user-input", 0), record("user-input", 1)
    rewrite(second, second.record_id, first.record_id)
    (check,) = [each for each in api.verify("t").failed if each.name == "record-identity"]
    assert first.record_id in check.detail


def test_256_an_abort_settles_out_of_turn_only_if_it_never_ran(declare: Declare) -> None:
    """The exemption is that of queued work: what ran before its abort has its place."""
    declare("sleeper", lambda ctx, _: ctx.sleep(3600))
    first, second = (api.submit("u", "sleeper", None) for _ in range(2))
    for receipt in (first, second):
        run()
        api.abort(receipt, reason="enough")
    run()
    assert api.verify("u", all_settled=True).ok
    settlements = LogRecord.objects.filter(thread_id="u", family="submission-settled").order_by("sequence")
    renumber(settlements[0], settlements[1])
    assert "fifo-settlement-order" in {check.name for check in api.verify("u").failed}


def test_a_row_with_another_outcome_than_the_log_is_found() -> None:
    Submission.objects.filter(queue_sequence=1).update(outcome="failed")
    assert broken() == {"ledger-canonical-agreement"}


def test_a_settlement_without_a_row_is_found() -> None:
    with connection.constraint_checks_disabled():
        row = Submission.objects.get(queue_sequence=1)
        row.attempt_rows.all().delete()
        row.delete()
    assert broken() == {"ledger-canonical-agreement"}


def test_a_row_that_is_not_settled_is_no_fault_unless_asked_for() -> None:
    api.submit("t", "tried", 1)
    assert broken() == set()
    assert broken(all_settled=True) == {"all-settled"}


def test_a_thread_without_submissions_has_not_settled_anything() -> None:
    Submission.objects.first().attempt_rows.model.objects.all().delete()  # type: ignore[union-attr]
    Submission.objects.all().delete()
    assert "all-settled" in broken(all_settled=True)


def test_a_detail_says_where_to_look() -> None:
    rewrite(record("step-settled"), '"output":1', '"output":2')
    (check,) = api.verify("t").failed
    assert check.detail.startswith("batch step:run:")


def test_a_long_log_is_read_in_pages(settings: Settings) -> None:
    settings.AGENTS = {"MAX_LOG_PAGE": 2, "LOG_PAGE": 2}
    with counted_statements() as statements:
        assert api.verify("t").ok
    assert len([sql for sql in statements.sql if "logrecord" in sql]) == 4


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_are_read_page_by_page_and_each_of_them_once(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """No cursor stays open between two statements: behind a pooler each may meet another session."""

    def handler(ctx: api.Context, given: Any) -> None:
        for number in range(3):
            ctx.call_tool(fetch, name=f"call {number}", page=number)

    def fetch(page: int) -> int:
        return page

    declare("calls", handler)
    api.submit("t", "calls", None)
    run()
    monkeypatch.setattr(stored, "CHUNK", size)

    assert [row.call for row in stored.read("t", 0).calls] == ["call 0", "call 1", "call 2"]
    assert broken() == set()
