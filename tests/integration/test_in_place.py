"""Going on in place: the transaction that ends a pass begins the next one, and its worker runs it (DESIGN 4.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.db import OperationalError

from maintenance import finish, history, operations, passes, reaper, tasks
from maintenance.delivery import Begun, Delivery, Outcome
from maintenance.finish import Done
from maintenance.gate import mutation
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.ports import BegunHead, Residue, Work
from maintenance.reaper import Observed
from maintenance.testing import Crash
from tests.arrivals import arrive
from tests.factories import MS, make_row, row_of
from tests.jobs import table_of_jobs
from tests.marks import maintenance_database
from tests.passes import CLAIMABLE, DEFERRED

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.passes import Result
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = maintenance_database

ANOTHER = UUID(int=1)


def settle(work: Work) -> None:
    with work.settling() as tally:
        tally.residue = CLAIMABLE


@pytest.fixture
def settling(stage: Stage, sent: list[Hint]) -> Stage:
    """Return ports whose head settles one submission and leaves another one that can be claimed."""
    stage.runtime.on_head, stage.runtime.settled = settle, 1
    stage.ledger.residue = CLAIMABLE
    return stage


def deliver_and_go_on() -> Result:
    """A delivery for the slot of a dirty thread, by a worker that may go on."""
    make_row(3, 2, 0, 0, seq=7)
    return passes.deliver(Delivery(thread_id="t", seq=7), may_go_on=lambda: True)


def next_of(result: Result) -> Begun:
    assert result.next is not None
    return result.next


# --- One worker, several passes -----------------------------------------------------------------


@pytest.mark.usefixtures("frozen")
def test_a_worker_goes_on_in_place_while_its_thread_is_due_and_sends_nothing(sent: list[Hint]) -> None:
    with table_of_jobs() as jobs:
        for number in range(3):
            jobs.submit(number)
        del sent[:]

        assert tasks.run_pass("t", row_of().alarm_seq) == Outcome.RAN

        assert jobs.settled() == {0: 1, 1: 1, 2: 1}
        assert not row_of().is_dirty
        assert sent == []
        assert [run.trigger for run in PassRun.objects.order_by("id")] == ["alarm", "in-place", "in-place"]


@pytest.mark.usefixtures("frozen")
def test_a_worker_hands_over_after_its_share_of_passes(sent: list[Hint], settings: Settings) -> None:
    settings.MAINTENANCE = {"IN_PLACE_PASSES": 2}
    with table_of_jobs() as jobs:
        for number in range(3):
            jobs.submit(number)
        del sent[:]

        tasks.run_pass("t", row_of().alarm_seq)

        assert jobs.settled() == {0: 1, 1: 1, 2: 0}
        assert [(hint.seq, hint.eta) for hint in sent] == [(row_of().alarm_seq, None)]


@pytest.mark.usefixtures("settling")
def test_the_transaction_that_ends_a_pass_begins_the_next(frozen: FrozenClock, sent: list[Hint]) -> None:
    begun = next_of(deliver_and_go_on())

    row = row_of()
    assert (row.lease_token, row.lease_epoch) == (begun.lease.token, begun.lease.epoch)
    assert (row.starts_since_finish, row.lease_started_at) == (1, frozen.at)
    assert row.alarm_at == frozen.at + 50 * MS, "the slot has given way to the crash fallback"
    assert (begun.generation, begun.actionable, begun.due_at) == (3, True, frozen.at)
    assert sent == []


def test_a_thread_that_was_paused_meanwhile_is_let_go(settling: Stage) -> None:
    def be_paused(work: Work) -> None:
        operations.pause("t", actor="ada", reason="a look")
        settle(work)

    settling.runtime.on_head = be_paused

    assert deliver_and_go_on().next is None

    assert row_of().lease_token is None


def test_a_timer_that_has_come_announces_its_generation_in_place(settling: Stage, frozen: FrozenClock) -> None:
    def outlive_the_timer(work: Work) -> None:
        frozen.at += 10 * MS
        with work.settling() as tally:
            tally.residue = Residue(nonterminal=1, autonomous=True, claimable_head=True, next_due=frozen.at - 5 * MS)

    settling.runtime.on_head = outlive_the_timer

    begun = next_of(deliver_and_go_on())

    assert (row_of().timer_at, row_of().dirty, begun.generation) == (None, 4, 4)


def test_the_generation_that_a_pass_in_place_certifies_is_the_newest(settling: Stage) -> None:
    """What was submitted while the first pass ran is the second one's business."""

    def be_mutated(work: Work) -> None:
        with mutation("t"):
            pass
        settle(work)

    settling.runtime.on_head = be_mutated

    begun = next_of(deliver_and_go_on())
    settling.runtime.on_head, settling.ledger.residue = None, Residue()
    passes.go_on(begun)

    assert (row_of().dirty, row_of().processed, row_of().alarm_at) == (4, 4, None)


# --- The next head, begun with its pass ---------------------------------------------------------


class Following:
    """The next head of a settlement, and what became of it."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.ran_under: list[int] = []
        self.fits = True

    def settle(self, work: Work) -> None:
        with work.settling() as tally:
            tally.residue, tally.begin_next = CLAIMABLE, self.begin

    def begin(self, _thread_id: str, epoch: int) -> BegunHead | None:
        self.epochs.append(epoch)
        return BegunHead(reports=[DEFERRED], run=self.run) if self.fits else None

    def run(self, work: Work) -> int:
        self.ran_under.append(work.epoch)
        return 0


@pytest.fixture
def following(settling: Stage) -> Following:
    """Return the next head that the settlement offers to begin."""
    made = Following()
    settling.runtime.on_head = made.settle
    return made


def test_a_head_that_was_begun_with_its_pass_runs_without_recovery(settling: Stage, following: Following) -> None:
    begun = next_of(deliver_and_go_on())
    del settling.calls[:]

    result = passes.go_on(begun)

    assert following.epochs == following.ran_under == [begun.lease.epoch]
    assert settling.calls == ["scan"]
    assert result.report is not None
    assert result.report.recovered == 1


def test_a_head_that_does_not_fit_is_begun_by_its_own_pass(settling: Stage, following: Following) -> None:
    following.fits = False
    begun = next_of(deliver_and_go_on())
    del settling.calls[:]

    passes.go_on(begun)

    assert settling.calls[:2] == ["recovery", "head"]


def test_no_head_is_begun_by_a_worker_that_does_not_go_on(following: Following) -> None:
    make_row(3, 2, 0, 0, seq=7)

    arrive(7)

    assert following.epochs == []


# --- Death and lost replies ---------------------------------------------------------------------


@pytest.mark.usefixtures("frozen")
def test_a_worker_killed_between_two_passes_in_place_is_found_by_the_reaper(
    sent: list[Hint], points: Failpoints
) -> None:
    """The next pass has begun, so its owner is known; nothing waits for a grace."""
    with table_of_jobs() as jobs:
        jobs.submit(1)
        jobs.submit(2)
        del sent[:]
        points.crash_at("maintenance:finish:after")
        with pytest.raises(Crash):
            tasks.run_pass("t", row_of().alarm_seq)
        token = row_of().lease_token
        assert token is not None
        assert sent == []

        assert reaper.release_of_the_dead(Observed("t", token, "the dead"))

        assert [hint.seq for hint in sent] == [row_of().alarm_seq]
        arrive(sent[0].seq)
        assert jobs.settled() == {1: 1, 2: 1}


@pytest.mark.usefixtures("settling")
def test_a_finish_asked_again_after_a_lost_reply_finds_the_pass_that_it_has_begun() -> None:
    make_row(3, 2, 0, 0, seq=7)
    held = next_of(passes.deliver(Delivery(thread_id="t", seq=7), may_go_on=lambda: True))
    done = Done(ran=True, residue=CLAIMABLE, settled=1)
    first = finish.finish(held, done, in_place=True)

    again = finish.finish(held, done, in_place=True)

    assert first is not None
    assert again is not None
    assert first.next is not None
    assert again.next is not None
    assert again.next.lease.token == first.next.lease.token == row_of().lease_token
    assert again.report == first.report
    assert PassRun.objects.count() == 2


def test_a_finish_asked_again_beside_a_sink_that_is_still_due_finds_its_report(
    settling: Stage, frozen: FrozenClock
) -> None:
    """The row keeps more than the report: how often in a row the sink was due at the end."""
    settling.sink.inert, settling.sink.deadline = False, frozen.at
    held = next_of(deliver_and_go_on())
    done = Done(ran=True, residue=CLAIMABLE, settled=1)
    first = finish.finish(held, done, in_place=True)

    again = finish.finish(held, done, in_place=True)

    assert history.times_still_due(row_of()) > 0
    assert first is not None
    assert again is not None
    assert again.report == first.report


def test_the_pass_begun_by_a_commit_whose_reply_was_lost_is_given_back(
    settling: Stage, points: Failpoints, sent: list[Hint]
) -> None:
    """Its worker does not know of it, and is alive: nobody else would release it before the lease expires."""

    def lose_the_reply(_: Any) -> None:
        message = "server closed the connection unexpectedly"
        raise OperationalError(message)

    points.arm("maintenance:finish:after", lose_the_reply)

    result = deliver_and_go_on()

    assert (result.outcome, result.next) == (Outcome.FAILED, None)
    assert settling.calls == ["recovery", "head"]
    row = row_of()
    assert (row.lease_token, row.starts_since_finish, row.is_dirty) == (None, 0, True)
    assert row.alarm_at is not None
    assert [run.outcome for run in PassRun.objects.order_by("id")] == ["ran", "failed"]
    assert len(sent) == 1


def test_the_pass_begun_by_a_commit_whose_reply_was_lost_is_given_back_if_the_runtime_settles_again(
    settling: Stage, points: Failpoints
) -> None:
    """To the runtime it looks as if another pass held the thread."""

    def settle_twice(work: Work) -> None:
        with pytest.raises(Crash):
            settle(work)
        settle(work)

    settling.runtime.on_head = settle_twice
    points.crash_at("maintenance:finish:after")

    assert deliver_and_go_on().outcome is Outcome.FAILED

    assert row_of().lease_token is None
    assert [run.outcome for run in PassRun.objects.order_by("id")] == ["ran", "failed"]


def test_a_pass_that_lost_its_thread_finds_nothing_to_give_back(settling: Stage) -> None:
    def be_taken_over(work: Work) -> None:
        ThreadMaintenance.objects.filter(pk="t").update(lease_token=ANOTHER)
        settle(work)

    settling.runtime.on_head = be_taken_over

    assert deliver_and_go_on().outcome is Outcome.LEASE_LOST

    assert row_of().lease_token == ANOTHER
