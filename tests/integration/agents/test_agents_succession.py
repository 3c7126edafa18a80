"""One submission after another in place: a settlement begins the next head in its own commit (DESIGN 4.9, 1 and 2).

Both forms come to the same; the fused one needs no recovery, no claim and no commit of their own for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from agents import api, failpoints, records
from agents.models import Attempt, LogBatch, LogRecord, Submission, Thread
from agents.states import State
from maintenance import drain, passes, tasks
from maintenance.delivery import Delivery, Outcome
from maintenance.errors import PassFailed
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.testing import Crash, travel
from tests.agents_kit import LEASE, agents_database, endings, families, run, run_after_a_death, settled, sound
from tests.statements import counted_statements

if TYPE_CHECKING:
    from maintenance.passes import Result
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.usefixtures("form")]

RUN_LOG = ["user-input", "submission-settled"]


def work(thread_id: str = "t") -> str:
    """One task of a worker: the delivery of the slot, and what it goes on with in place."""
    return str(tasks.run_pass(thread_id, slot(thread_id)))


def first_pass(thread_id: str = "t") -> Result:
    """The delivery of the slot by a worker that goes on: the first pass of the task."""
    return passes.deliver(Delivery(thread_id=thread_id, seq=slot(thread_id)), may_go_on=lambda: True)


def slot(thread_id: str) -> int:
    return ThreadMaintenance.objects.values_list("alarm_seq", flat=True).get(pk=thread_id)


@pytest.fixture
def ran(declare: Declare) -> list[Any]:
    """Return what the agent `note` was given, in the order of its runs."""
    given: list[Any] = []

    def note(_ctx: api.Context, value: Any) -> Any:
        given.append(value)
        return value

    declare("note", note)
    return given


def test_one_task_settles_a_whole_queue_in_order(ran: list[Any]) -> None:
    receipts = [api.submit("t", "note", number) for number in range(4)]

    assert work() == Outcome.RAN

    assert ran == [0, 1, 2, 3]
    assert [settled(receipt).result for receipt in receipts] == [0, 1, 2, 3]
    assert families()[1:] == RUN_LOG * 4
    assert endings() == ["settled"] * 4
    assert sound()


def test_each_pass_in_place_counts_every_submission_that_it_found(ran: list[Any]) -> None:
    for number in range(3):
        api.submit("t", "note", number)
    work()
    assert [(run.trigger, run.recovered, run.settled) for run in PassRun.objects.order_by("id")] == [
        ("alarm", 3, 1),
        ("in-place", 2, 1),
        ("in-place", 1, 1),
    ]
    assert list(Attempt.objects.order_by("id").values_list("epoch", flat=True)) == [1, 2, 3]


@pytest.mark.postgres
def test_a_job_in_place_is_one_transaction_of_four_statements(form: str, ran: list[Any]) -> None:
    """Lock; outcome with a look at the queue; finish and begin; claim with input. The plain form shares nothing."""
    for number in range(3):
        api.submit("t", "note", number)
    begun = first_pass().next
    assert begun is not None
    with counted_statements() as statements:
        assert passes.go_on(begun, may_go_on=lambda: True).next is not None
    if form == "fused":
        assert (len(statements), statements.transactions) == (4, 1)
    else:
        assert statements.transactions > 1


def test_a_death_before_the_next_head_is_committed_takes_the_settlement_back(
    form: str, ran: list[Any], points: Failpoints
) -> None:
    receipts = [api.submit("t", "note", number) for number in range(2)]
    points.arm(failpoints.CLAIM_CLAIMED, lambda _: None)
    points.crash_at(failpoints.CLAIM_CLAIMED)

    with pytest.raises(Crash):
        work()

    settled_before = [api.settlement(receipt) is not None for receipt in receipts]
    assert settled_before == ([False, False] if form == "fused" else [True, False])
    run_after_a_death()
    assert [settled(receipt).result for receipt in receipts] == [0, 1]
    assert sound()


def test_a_death_after_the_next_head_is_committed_costs_it_an_attempt(ran: list[Any], points: Failpoints) -> None:
    receipts = [api.submit("t", "note", number) for number in range(2)]
    points.arm(failpoints.CLAIM_AFTER, lambda _: None)
    points.crash_at(failpoints.CLAIM_AFTER)

    with pytest.raises(Crash):
        work()

    assert settled(receipts[0]).result == 0
    assert ran == [0]
    run_after_a_death()
    assert settled(receipts[1]).attempts == 2
    assert endings() == ["settled", "lost", "settled"]
    assert ran == [0, 1]
    assert sound()


def test_a_worker_that_is_told_to_stop_between_two_heads_does_not_begin_the_second(
    form: str, ran: list[Any], points: Failpoints
) -> None:
    """Also where the first one's settlement has claimed it already; that claim costs it nothing."""
    receipts = [api.submit("t", "note", number) for number in range(2)]
    points.arm("maintenance:finish:after", lambda _: drain.request())

    work()

    assert ran == [0]
    assert endings() == (["settled", "yielded"] if form == "fused" else ["settled"])
    assert ThreadMaintenance.objects.get(pk="t").lease_token is None
    drain.reset()
    travel(LEASE)
    run()
    assert settled(receipts[1]).result == 1
    assert sound()


def test_a_next_head_that_nobody_here_can_run_leaves_the_settlement_alone(ran: list[Any], declare: Declare) -> None:
    first = api.submit("t", "note", 0)
    declare("stranger", lambda _ctx, value: value)
    second = api.submit("t", "stranger", 1)
    from agents import registry

    registry.unregister("stranger")

    with pytest.raises(PassFailed):
        work()

    assert settled(first).result == 0
    assert api.settlement(second) is None
    assert Submission.objects.get(pk=second.submission_id).state == State.READY


@pytest.mark.parametrize("place", [4, 1_000], ids=["its place", "its id"])
def test_a_next_head_whose_input_does_not_fit_the_log_leaves_the_settlement_alone(ran: list[Any], place: int) -> None:
    """Nobody but a person with the database at hand can bring that about; it is the second one's trouble alone."""
    first, second = (api.submit("t", "note", number) for number in range(2))
    forge(records.input_id(str(second.submission_id)) if place == 1_000 else "stray", place)

    with pytest.raises(PassFailed):
        work()

    assert settled(first).result == 0
    assert ran == [0]
    assert api.settlement(second) is None


def forge(record_id: str, sequence: int) -> None:
    """Puts a record where no batch wrote it."""
    batch = LogBatch.objects.filter(thread_id="t").latest("id")
    LogRecord.objects.create(
        thread_id="t", sequence=sequence, batch=batch, record_id=record_id, family="user-input", text="{}"
    )


def test_a_follower_to_be_aborted_is_looked_at_by_recovery(ran: list[Any]) -> None:
    first, second, third = (api.submit("t", "note", number) for number in range(3))
    api.abort(second.submission_id, actor="ada", reason="not needed")

    work()
    run()

    assert [settled(receipt).outcome for receipt in (first, second, third)] == ["completed", "aborted", "completed"]
    assert ran == [0, 2]
    assert sound()


def test_an_abort_that_comes_while_the_head_runs_is_seen_by_its_settlement(declare: Declare) -> None:
    later: list[api.Receipt] = []

    def abort_the_next(_ctx: api.Context, _given: Any) -> None:
        api.abort(later[0].submission_id, actor="ada", reason="no")

    declare("abort", abort_the_next)
    api.submit("t", "abort", None)
    later.append(api.submit("t", "abort", None))

    work()
    run()

    assert settled(later[0]).outcome == "aborted"
    assert sound()


def test_a_submission_that_comes_while_the_head_runs_is_the_next(declare: Declare) -> None:
    later: list[api.Receipt] = []

    def submit_another(_ctx: api.Context, left: int) -> int:
        if left:
            later.append(api.submit("t", "chain", left - 1))
        return left

    declare("chain", submit_another)
    api.submit("t", "chain", 2)

    assert work() == Outcome.RAN

    assert [settled(receipt).result for receipt in later] == [1, 0]
    assert Thread.objects.get(pk="t").tail_sequence == 7
    assert sound()


def test_a_handler_that_leaves_autocommit_off_settles_nothing_and_no_other_head_runs(declare: Declare) -> None:
    """Nothing would be committed: not its settlement, and not the claim of the next head before that one's code ran."""
    began: list[int] = []

    def careless(_ctx: api.Context, number: int) -> int:
        began.append(number)
        transaction.set_autocommit(len(began) > 1)
        return number

    declare("careless", careless)
    receipts = [api.submit("t", "careless", number) for number in range(2)]

    with pytest.raises(PassFailed):
        work()

    assert began == [0]
    assert ThreadMaintenance.objects.get(pk="t").lease_token is None
    travel(LEASE)
    run()
    assert [settled(receipt).result for receipt in receipts] == [0, 1]
    assert began == [0, 0, 1]
    assert sound()
