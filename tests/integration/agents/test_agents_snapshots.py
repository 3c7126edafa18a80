"""What is seen of accepted work from its admission to its end, and whose turn it is (scenarios B, C and H)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import OperationalError, transaction

from agents import api, canonical, failpoints, log, settlement
from agents.errors import AdmissionUncertain, AppendConflict, StateConflict
from agents.models import Attempt, Submission
from agents.operations.explain import Evidence
from agents.operations.findings import Tries
from agents.records import Failure
from agents.states import Ending, Outcome
from maintenance import delivery
from maintenance.models import ThreadMaintenance
from maintenance.testing import deliver
from tests.agents_kit import agents_database, families, run, settled
from tests.factories import row_of

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.usefixtures("form")]


def test_13_what_was_accepted_is_found_by_its_id_and_by_its_key(echo: str) -> None:
    key: dict[str, Any] = {"idempotency_key": "k", "principal": "ann"}
    receipt = api.submit("t", echo, {"n": 1}, **key)

    found = api.explain(receipt.submission_id)

    assert (found.submission_id, found.thread_id, found.agent) == (receipt.submission_id, "t", echo)
    assert (found.queue_sequence, found.state) == (receipt.queue_sequence, "ready")
    assert api.submit("t", echo, {"n": 1}, **key) == receipt
    row = Submission.objects.get()
    assert (row.pk, row.principal, row.idempotency_key, row.input) == (receipt.submission_id, "ann", "k", '{"n":1}')


def refuse_to_answer(_: str) -> None:
    raise OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize(("place", "was_kept"), [(failpoints.SUBMIT_ADMITTED, False), (failpoints.SUBMIT_AFTER, True)])
def test_17_who_does_not_learn_whether_work_was_accepted_is_told_so_and_asks_again_under_the_key(
    echo: str, points: Failpoints, place: str, *, was_kept: bool
) -> None:
    points.arm(place, refuse_to_answer)
    with pytest.raises(AdmissionUncertain, match="submit it again with its key"):
        api.submit("t", echo, 1, idempotency_key="k")

    assert api.submit("t", echo, 1, idempotency_key="k").replayed is was_kept
    assert Submission.objects.count() == 1


def test_18_what_is_owed_is_listed_without_gaps_each_thread_in_the_order_of_its_queue(
    declare: Declare, echo: str
) -> None:
    declare("patient", lambda ctx, _: ctx.wait_event("never"))
    for thread in ("a", "b"):
        api.submit(thread, echo, 0)
        for _ in range(2):
            api.submit(thread, "patient", None)
    api.submit("c", echo, 0)
    run()

    listed = {thread: [one.queue_sequence for one in api.explain_thread(thread)] for thread in ("a", "b", "c")}

    assert listed == {"a": [2, 3], "b": [2, 3], "c": []}
    owed = sorted((one.thread_id, one.queue_sequence) for one in api.obligations().entries)
    assert owed == [("a", 2), ("a", 3), ("b", 2), ("b", 3)]


def test_19_queued_work_has_no_owner_no_input_record_and_no_abort(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    assert api.explain(receipt).evidence == Evidence(attempts=Tries(budget=10))
    assert (row_of().lease_token, row_of().lease_owner, row_of().lease_epoch) == (None, "", 0)


def test_20_21_running_work_shows_its_attempt_its_input_record_and_its_abort_and_never_the_token(
    declare: Declare,
) -> None:
    seen: list[tuple[api.Explanation, Attempt, ThreadMaintenance]] = []

    def handler(ctx: api.Context, _: Any) -> None:
        api.abort(receipt, actor="ann", reason="enough")
        seen.append((api.explain(receipt), Attempt.objects.get(), row_of()))

    declare("watched", handler)
    receipt = api.submit("t", "watched", None)
    run()

    ((found, attempt, row),) = seen
    tries, abort = found.evidence.attempts, found.evidence.abort
    assert tries is not None
    assert (tries.begun, tries.running_since) == (1, attempt.started_at)
    assert (attempt.owner, attempt.epoch) == (row.lease_owner, row.lease_epoch)
    assert row.lease_expires_at is not None
    assert found.evidence.first_sequence == next(one.sequence for one in log.export("t") if one.family == "user-input")
    assert abort is not None
    assert (abort.author, abort.reason) == ("ann", "enough")
    assert str(row.lease_token) not in json.dumps(asdict(found), cls=DjangoJSONEncoder)


def test_22_97_settled_work_gives_a_pass_nothing_to_do(echo: str) -> None:
    api.submit("t", echo, 1)
    run()
    before = families()

    result = deliver("t", forced=True)

    assert result.report is not None
    assert (result.report.phase, result.report.nonterminal) == ("caught-up", 0)
    assert (families(), Attempt.objects.count()) == (before, 1)


def test_23_24_36_one_head_is_claimed_at_a_time_each_under_a_newer_epoch(declare: Declare) -> None:
    """A claim is seen at once, and nobody gets past it: not even the process that has made it."""
    seen: list[tuple[list[str], delivery.Outcome]] = []

    def handler(ctx: api.Context, _: Any) -> None:
        states = list(Submission.objects.order_by("queue_sequence").values_list("state", flat=True))
        seen.append((states, deliver("t", forced=True).outcome))

    declare("watched", handler)
    for _ in range(2):
        api.submit("t", "watched", None)
    run()

    busy = delivery.Outcome.BUSY
    assert seen == [(["input_applied", "ready"], busy), (["settled", "input_applied"], busy)]
    first, second = Attempt.objects.order_by("submission__queue_sequence").values_list("epoch", flat=True)
    assert first < second


def test_34_a_decision_makes_a_waiting_head_claimable_as_a_fresh_attempt(declare: Declare) -> None:
    declare("asker", lambda ctx, _: ctx.approval("refund", "refund").decision)
    receipt = api.submit("t", "asker", None)
    run()
    deliver("t", forced=True)
    assert list(Attempt.objects.values_list("number", "ending")) == [(1, "suspended")]

    api.resolve_approval(receipt, "approved", name="refund", reason="fine")
    run()

    assert list(Attempt.objects.order_by("number").values_list("number", "ending")) == [
        (1, "suspended"),
        (2, "settled"),
    ]


def test_86_to_91_a_settlement_that_stands_is_neither_repeated_nor_replaced(declare: Declare) -> None:
    def handler(_ctx: api.Context, _: Any) -> None:
        raise api.AgentFailure("the card was declined", tag="CardDeclined")

    declare("failing", handler)
    receipt = api.submit("t", "failing", None)
    with pytest.raises(StateConflict), transaction.atomic():
        settlement.finalize(receipt.submission_id, Outcome.FAILED, 0, Ending.SETTLED)
    run()
    stands, before = settled(receipt), families()
    assert stands.failure == Failure(error_tag="CardDeclined", message="the card was declined")

    for outcome in Outcome:
        with pytest.raises(StateConflict), transaction.atomic():
            settlement.finalize(receipt.submission_id, outcome, 1, Ending.SETTLED)

    assert (settled(receipt), families()) == (stands, before)
    assert settled(receipt).settled_at == Submission.objects.get().settled_at


def test_88_89_a_second_settlement_record_is_refused_and_the_same_one_is_a_replay(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    run_id = f"run:{receipt.submission_id}"
    same = settlement.batch(receipt.submission_id, Outcome.COMPLETED, run=run_id, result=canonical.encode(1))
    others = [
        settlement.batch(receipt.submission_id, Outcome.COMPLETED, run=run_id, result=canonical.encode(2)),
        settlement.batch(receipt.submission_id, Outcome.ABORTED, run=run_id),
    ]
    before = log.tail_of("t")

    with transaction.atomic():
        assert log.append_at_tail("t", same, epoch=1).replayed
    for other in others:
        with pytest.raises(AppendConflict) as refused, transaction.atomic():
            log.append_at_tail("t", other, epoch=1)
        assert refused.value.reason == "batch-digest"

    assert log.tail_of("t") == before


def test_266_267_who_reads_on_from_where_he_was_sees_question_decision_and_settlement(declare: Declare) -> None:
    declare("asker", lambda ctx, _: ctx.approval("refund", "refund").decision)
    seen: list[list[str]] = []

    def read_on() -> None:
        page = api.progress("t", after=sum(len(each) for each in seen))
        seen.append([record.family for record in page])

    receipt = api.submit("t", "asker", None)
    read_on()
    run()
    read_on()
    api.resolve_approval(receipt, "approved", name="refund", reason="fine")
    run()
    read_on()
    read_on()

    assert seen == [
        ["thread-created"],
        ["user-input", "approval-requested"],
        ["approval-decided", "submission-settled"],
        [],
    ]


def test_h15_h16_work_behind_a_question_is_looked_at_once_and_rests(declare: Declare, echo: str) -> None:
    declare("asker", lambda ctx, _: ctx.approval("refund", "refund").decision)
    api.submit("t", "asker", None)
    run()
    assert row_of().alarm_at is None

    api.submit("t", echo, 1)
    results = run()

    assert [result.report.nonterminal for result in results if result.report] == [2]
    assert (row_of().alarm_at, row_of().is_dirty) == (None, False)
