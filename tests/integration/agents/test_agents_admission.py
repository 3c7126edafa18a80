"""Accepting work (ledger-recovery, b; scenarios A, B, G)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction

from agents import api
from agents.admission import _LOOK_UP
from agents.errors import AdmissionConflict, AdmissionLimitExceeded, AgentInputError, UnknownAgent, WakefulError
from agents.models import LogRecord, Submission, Thread
from maintenance.errors import MutationRefused
from maintenance.models import ThreadMaintenance
from maintenance.testing import Crash
from tests.agents_kit import agents_database, families, log, run, settled, sound
from tests.concurrency import running
from tests.statements import counted_statements

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.usefixtures("form")]


def submit(payload: Any = None, *, agent: str = "echo", thread: str = "t", **options: Any) -> api.Receipt:
    return api.submit(thread, agent, payload if payload is not None else {"n": 1}, **options)


def generation(thread: str = "t") -> int:
    return ThreadMaintenance.objects.values_list("dirty", flat=True).get(pk=thread)


def nothing_is_written() -> bool:
    return not (Submission.objects.exists() or Thread.objects.exists() or ThreadMaintenance.objects.exists())


def test_68_a_submission_is_ready_and_its_new_thread_holds_exactly_its_first_record(echo: str) -> None:
    receipt = submit()

    row = Submission.objects.get()
    assert (row.pk, row.state, row.queue_sequence, row.attempts) == (receipt.submission_id, "ready", 1, 0)
    assert [(record.record_id, record.family) for record in log()] == [("thread-created:t", "thread-created")]


def test_the_hint_goes_out_after_the_commit_for_an_armed_dirty_thread(echo: str, sent: list[Hint]) -> None:
    with transaction.atomic():
        submit()
        assert sent == []
    row = ThreadMaintenance.objects.get()
    assert (row.dirty, row.processed) == (2, 0)
    assert [(hint.thread_id, hint.seq) for hint in sent] == [("t", row.alarm_seq)]


def test_02_the_same_key_and_payload_give_the_same_receipt_and_write_nothing(echo: str) -> None:
    first = submit({"a": 1, "b": 2}, idempotency_key="k")
    before = generation()

    again = submit({"b": 2, "a": 1}, idempotency_key="k")

    assert again == first
    assert (first.replayed, again.replayed) == (False, True)
    assert generation() == before
    assert Submission.objects.count() == 1


def test_05_another_key_is_another_submission_with_the_next_place(echo: str) -> None:
    places = [submit(idempotency_key=key).queue_sequence for key in ("a", "b", "c")]

    assert places == [1, 2, 3]
    assert families() == ["thread-created"]


def test_without_a_key_every_call_is_a_submission(echo: str) -> None:
    assert submit().submission_id != submit().submission_id


def test_06_two_principals_may_use_one_key(echo: str) -> None:
    first = submit(idempotency_key="k", principal="p1")
    second = submit(idempotency_key="k", principal="p2")

    assert first.submission_id != second.submission_id
    assert submit(idempotency_key="k", principal="p1") == first
    assert submit(idempotency_key="k", principal="p2") == second


def test_11_a_settled_key_still_gives_its_receipt(echo: str) -> None:
    first = submit(idempotency_key="k")
    run()
    assert settled(first).outcome == "completed"

    assert submit(idempotency_key="k") == first
    assert run() == []


def test_69_the_same_key_with_another_payload_is_a_conflict(echo: str) -> None:
    submit({"n": 1}, idempotency_key="k")
    before = generation()

    with pytest.raises(AdmissionConflict) as raised:
        submit({"n": 2}, idempotency_key="k")

    assert (raised.value.thread_id, raised.value.key) == ("t", "k")
    assert generation() == before


def test_f22_the_same_key_for_another_agent_is_a_conflict(echo: str, declare: Declare) -> None:
    declare("other", lambda _ctx, given: given)
    submit(idempotency_key="k")

    with pytest.raises(AdmissionConflict, match="'other'"):
        submit(idempotency_key="k", agent="other")


def test_an_unknown_agent_is_refused_with_the_likely_name(echo: str) -> None:
    with pytest.raises(UnknownAgent, match="did you mean 'echo'"):
        submit(agent="ecko")
    assert nothing_is_written()


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"at": object()}, "object has no JSON form"),
        ({"n": float("nan")}, "not finite"),
        ({"n": 2**53}, "2\\^53"),
        ({1: "key"}, "keys must be strings"),
        ({"text": "\ud800"}, "surrogate"),
    ],
)
def test_an_input_that_is_not_json_is_refused(echo: str, payload: Any, why: str) -> None:
    with pytest.raises(AgentInputError, match=why):
        submit(payload)
    assert nothing_is_written()


def test_59_nesting_is_bounded(echo: str) -> None:
    deep: list[Any] = []
    for _ in range(63):
        deep = [deep]
    submit(deep)
    with pytest.raises(AgentInputError, match="nested deeper than 64"):
        submit([deep])


@pytest.mark.parametrize("thread", ["", "x" * 256, "a\x00b", "\ud800", None])
def test_a_thread_id_that_cannot_be_stored_is_refused(echo: str, thread: Any) -> None:
    with pytest.raises(AgentInputError, match="thread_id"):
        submit(thread=thread)
    assert nothing_is_written()


def test_the_longest_thread_id_is_accepted(echo: str) -> None:
    receipt = submit(thread="ä" * 255)
    run()
    assert settled(receipt).outcome == "completed"
    sound("ä" * 255)


def test_an_input_over_the_limit_is_refused_before_any_row(echo: str, settings: Settings) -> None:
    settings.AGENTS = {"MAX_INPUT_BYTES": 10}
    submit("ü" * 4)
    with pytest.raises(AdmissionLimitExceeded) as raised:
        submit("ü" * 5, thread="other")

    refused = raised.value
    assert (refused.limit, refused.actual, refused.maximum) == ("input bytes", 12, 10)
    assert not ThreadMaintenance.objects.filter(pk="other").exists()


def test_a_full_queue_is_refused_without_a_trace(echo: str, settings: Settings) -> None:
    settings.AGENTS = {"MAX_QUEUE_DEPTH": 2}
    submit(idempotency_key="a")
    submit(idempotency_key="b")
    before = generation()

    for key in ("c", None):
        with pytest.raises(AdmissionLimitExceeded) as raised:
            submit(idempotency_key=key)
        assert (raised.value.limit, raised.value.actual, raised.value.maximum) == ("queue depth", 2, 2)

    assert generation() == before
    assert Thread.objects.get().next_queue_sequence == 3


@pytest.mark.parametrize("key", ["b", None])
def test_p04_an_input_that_is_too_large_is_refused_as_such_also_where_the_queue_is_full(
    echo: str, settings: Settings, key: str | None
) -> None:
    """A smaller input is what the caller can do something about."""
    settings.AGENTS = {"MAX_QUEUE_DEPTH": 1, "MAX_INPUT_BYTES": 10}
    submit(1)
    with pytest.raises(AdmissionLimitExceeded, match="input bytes"):
        submit("x" * 20, idempotency_key=key)


def test_a_replay_is_exempt_from_the_limits(echo: str, settings: Settings) -> None:
    first = submit(idempotency_key="a")
    settings.AGENTS = {"MAX_QUEUE_DEPTH": 1, "MAX_INPUT_BYTES": 1}
    assert submit(idempotency_key="a") == first


def test_the_queue_has_room_again_when_work_is_settled(echo: str, settings: Settings) -> None:
    settings.AGENTS = {"MAX_QUEUE_DEPTH": 1}
    submit()
    run()
    assert submit().queue_sequence == 2


def in_two_threads(work: Callable[[int], Any]) -> list[Any]:
    """The results, or errors, of `work(0)` and `work(1)` on connections of their own."""
    answers: list[Any] = []

    def answering(which: int) -> None:
        try:
            answers.append(work(which))
        except WakefulError as error:
            answers.append(error)

    with running(lambda: answering(0), lambda: answering(1)):
        pass
    return answers


def meet_at(points: Failpoints, name: str) -> None:
    """Both callers have passed every check before the lock when the first takes it."""
    barrier = threading.Barrier(2, timeout=20)

    def meet(_: str) -> None:
        barrier.wait()

    for _ in range(2):
        points.arm(name, meet)


def test_07_of_two_concurrent_duplicates_one_is_admitted_and_the_other_leaves_no_bump(
    echo: str, points: Failpoints
) -> None:
    submit(thread="t", idempotency_key="before")
    before = generation()
    meet_at(points, "submit:before")

    receipts = in_two_threads(lambda _: submit(idempotency_key="k"))

    assert receipts[0] == receipts[1]
    assert sorted(receipt.replayed for receipt in receipts) == [False, True]
    assert Submission.objects.filter(idempotency_key="k").count() == 1
    assert generation() == before + 1
    assert points.pending == []
    assert Thread.objects.get().next_queue_sequence == 3


def test_of_two_concurrent_payloads_for_one_key_one_is_a_conflict(echo: str, points: Failpoints) -> None:
    meet_at(points, "submit:before")

    answers = in_two_threads(lambda which: submit({"n": which}, idempotency_key="k"))

    assert sorted(type(answer).__name__ for answer in answers) == ["AdmissionConflict", "Receipt"]
    assert generation() == 2


def test_the_last_place_of_a_queue_is_given_once(echo: str, points: Failpoints, settings: Settings) -> None:
    settings.AGENTS = {"MAX_QUEUE_DEPTH": 1}
    meet_at(points, "submit:before")

    answers = in_two_threads(lambda which: submit(idempotency_key=f"k{which}"))

    assert sorted(type(answer).__name__ for answer in answers) == ["AdmissionLimitExceeded", "Receipt"]
    assert generation() == 2


def test_the_callers_rollback_takes_the_submission_with_it(echo: str, sent: list[Hint]) -> None:
    with transaction.atomic():
        submit()
        transaction.set_rollback(True)
    assert nothing_is_written()
    assert sent == []


def test_several_submissions_of_one_thread_may_share_a_transaction(echo: str) -> None:
    with transaction.atomic():
        receipts = [submit({"n": n}) for n in range(3)]
    run()
    assert [settled(receipt).result for receipt in receipts] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_second_thread_in_one_transaction_is_refused(echo: str) -> None:
    with transaction.atomic():
        submit(thread="a")
        with pytest.raises(MutationRefused):
            submit(thread="b")
    assert list(Thread.objects.values_list("pk", flat=True)) == ["a"]


def test_a_conflict_inside_the_callers_transaction_leaves_it_usable(echo: str) -> None:
    with transaction.atomic():
        submit({"n": 1}, idempotency_key="k")
        with pytest.raises(AdmissionConflict):
            submit({"n": 2}, idempotency_key="k")
        submit({"n": 3}, idempotency_key="other")
    assert Submission.objects.count() == 2


def test_a_crash_before_the_commit_leaves_nothing(echo: str, points: Failpoints) -> None:
    points.crash_at("submit:after-admit")
    with pytest.raises(Crash):
        submit(idempotency_key="k")

    assert nothing_is_written()
    assert not LogRecord.objects.exists()
    assert submit(idempotency_key="k").replayed is False


def test_70_a_crash_before_the_receipt_is_seen_is_repaired_by_submitting_again(echo: str, points: Failpoints) -> None:
    points.crash_at("submit:after")
    with pytest.raises(Crash):
        submit(idempotency_key="k")

    again = submit(idempotency_key="k")

    assert again.replayed is True
    run()
    assert settled(again).outcome == "completed"


@pytest.mark.postgres
@pytest.mark.parametrize(("key", "expected"), [("k", 3), (None, 2)])
def test_a_submission_to_a_known_thread_costs_few_statements(
    echo: str, settings: Settings, key: str | None, expected: int
) -> None:
    """The lookup of the key, the bump, the admission; the last two are its one transaction."""
    settings.MAINTENANCE = {**settings.MAINTENANCE, "FUSED": True}
    submit()
    with counted_statements() as statements:
        submit(idempotency_key=key)
    assert (len(statements), statements.transactions) == (expected, 1)


@pytest.mark.postgres
def test_a_replay_costs_one_statement_and_no_transaction(echo: str) -> None:
    submit(idempotency_key="k")
    with counted_statements() as statements:
        submit(idempotency_key="k")
    assert (len(statements), statements.transactions) == (1, 0)


def test_the_lookup_of_a_key_counts_the_queue_by_its_index(echo: str) -> None:
    submit(idempotency_key="k")
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET enable_seqscan = off")
        explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        cursor.execute(f"{explain} {_LOOK_UP}", ["t", "t", "", "k"])
        plan = str(cursor.fetchall())
    assert "wakeful_submission_open" in plan
    assert "seq scan" not in plan.lower()
