"""How a pass begins (alarm-host, 8.2 and 15.4; scenarios D; the design, 3.6 step 1).

The reference asks no port before its begin has committed. Here begin asks the ports' deadlines of a caught-up thread
under the row lock, and if none is due the whole pass is that one transaction (scenarios E).
"""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from maintenance import passes
from maintenance.delivery import Delivery, Outcome
from maintenance.errors import BEGIN_PASS, DurableAlarmError
from maintenance.gate import mutation, prearmed_mutation
from maintenance.models import PassRun
from maintenance.testing import deliver, fixed_jitter
from tests.concurrency import PATIENCE, elsewhere, running
from tests.factories import MS, make_row, numbers, row_of, stored
from tests.marks import maintenance_database
from tests.stubs import fail

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.ports import Work
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]

MAX_BIGINT = 2**63 - 1

Numbers = tuple[int, int, int, float | None]


@pytest.fixture
def begun(frozen: FrozenClock, stage: Stage) -> list[Numbers]:
    """Return what another connection sees of the row while canonical work runs, one entry a pass."""
    seen: list[Numbers] = []
    stage.runtime.on_recovery = lambda _: seen.append(elsewhere(lambda: numbers(frozen.at)))
    return seen


def test_d01_a_caught_up_pass_is_pre_armed_before_a_sink_is_drained(frozen: FrozenClock, stage: Stage) -> None:
    seen: list[object] = []
    stage.sink.inert, stage.sink.deadline = False, frozen.at
    stage.sink.on_drain = lambda: seen.append(elsewhere(lambda: numbers(frozen.at)))
    make_row(4, 4, 2)
    report = deliver("t", forced=True).report
    assert seen == [(4, 4, 2, 50)]
    assert report is not None
    assert (report.phase, report.nonterminal) == ("caught-up", 2)


def test_d02_a_dirty_thread_is_worked_off_at_the_generation_that_begin_saw(stage: Stage, begun: list[Numbers]) -> None:
    make_row(5, 4, 2, 5000)
    generations: list[int | None] = []
    stage.runtime.on_head = lambda work: generations.append(work.generation)
    deliver("t", forced=True)
    assert (begun, generations) == ([(5, 4, 2, 50)], [5])


def test_d03_a_forced_pass_keeps_a_slot_ahead_that_is_earlier_than_the_fallback(
    begun: list[Numbers],
) -> None:
    make_row(5, 4, 2, 20)
    deliver("t", forced=True)
    assert begun == [(5, 4, 2, 20)]


@pytest.mark.parametrize("slot", [-500, 0, 15], ids=["late", "on-time", "early-within-the-tolerance"])
def test_d04_the_slot_that_a_delivery_answers_is_consumed(stage: Stage, begun: list[Numbers], slot: float) -> None:
    sequences: list[int] = []
    stage.runtime.on_head = lambda _: sequences.append(row_of().alarm_seq)
    make_row(5, 4, 2, slot, seq=7)
    deliver("t")
    assert (begun, sequences) == ([(5, 4, 2, 50)], [8])


def test_d05_the_generation_is_prepared_once_after_begin_has_committed(
    frozen: FrozenClock, stage: Stage, points: Failpoints
) -> None:
    seen: list[object] = []
    stage.sink.inert, stage.sink.wants_generation = False, True
    stage.sink.on_prepare = lambda: seen.append((points.seen[-1], numbers(frozen.at)))
    make_row(5, 4, 2, 0)
    deliver("t")
    assert stage.sink.prepared == [5]
    assert seen == [("maintenance:begin:after", (5, 4, 2, 50))]


@pytest.mark.postgres
def test_d05_no_mutation_can_begin_while_the_generation_is_prepared(stage: Stage) -> None:
    def mutate_with_little_patience() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        with pytest.raises(DurableAlarmError), mutation("t"):
            pytest.fail("the body must not run")

    stage.sink.inert, stage.sink.wants_generation = False, True
    stage.sink.on_prepare = lambda: elsewhere(mutate_with_little_patience)
    make_row(5, 4, 2, 0)
    assert deliver("t").outcome is Outcome.RAN


def test_d06_a_caught_up_pass_prepares_nothing(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.wants_generation, stage.sink.deadline = False, True, frozen.at
    make_row(4, 4, 2, 0)
    deliver("t")
    assert stage.sink.prepared == []


def test_a_sink_that_does_not_want_the_generation_is_not_told(stage: Stage) -> None:
    stage.sink.inert = False
    make_row(5, 4, 2, 0)
    deliver("t")
    assert stage.sink.prepared == []


def test_d09_a_failed_pass_prepares_the_same_generation_again(frozen: FrozenClock, stage: Stage) -> None:
    """The same number tells the sink to keep its partial progress."""
    stage.sink.inert, stage.sink.wants_generation = False, True
    stage.runtime.on_head = fail
    make_row(5, 4, 2, 0)
    with fixed_jitter(0):
        deliver("t")
    frozen.at += 500 * MS
    deliver("t")
    assert stage.sink.prepared == [5, 5]


def test_d10_a_begin_that_fails_leaves_row_and_slot_as_they_were(stage: Stage) -> None:
    make_row(5, 4, 2, 0, lease_epoch=MAX_BIGINT)
    before = stored()
    result = deliver("t")
    assert (result.outcome, result.failed, stage.calls) == (Outcome.FAILED, True, [])
    assert result.error.startswith(BEGIN_PASS)
    assert (stored(), PassRun.objects.count()) == (before, 0)


def test_d11_a_mutation_between_begin_and_prepare_is_certified_with_the_rest(
    frozen: FrozenClock, stage: Stage, points: Failpoints
) -> None:
    def mutate() -> None:
        with mutation("t"):
            pass

    stage.sink.inert, stage.sink.wants_generation = False, True
    points.arm("maintenance:begin:after", lambda _: elsewhere(mutate))
    make_row(5, 4, 0, 0)
    generations: list[int | None] = []
    stage.runtime.on_head = lambda work: generations.append(work.generation)
    deliver("t")
    assert (points.pending, stage.sink.prepared, generations) == ([], [6], [6])
    assert numbers(frozen.at) == (6, 6, 0, None)


def test_without_a_sink_that_wants_it_a_mutation_after_begin_is_left_to_the_next_pass(
    frozen: FrozenClock, points: Failpoints
) -> None:
    def mutate() -> None:
        with mutation("t"):
            pass

    points.arm("maintenance:begin:after", lambda _: elsewhere(mutate))
    make_row(5, 4, 0, 0)
    deliver("t")
    assert numbers(frozen.at) == (6, 5, 0, 0)


def test_d12_a_pre_armed_mutation_between_begin_and_prepare_certifies_nothing(stage: Stage, points: Failpoints) -> None:
    """It ends before the pass does: what it did while the pass looked stays uncertified all the same."""
    may_begin, in_body, may_end, ended = Event(), Event(), Event(), Event()

    def charge() -> None:
        assert may_begin.wait(PATIENCE)
        with prearmed_mutation("t", "charge"):
            in_body.set()
            assert may_end.wait(PATIENCE)
        ended.set()

    def let_it_begin(_: str) -> None:
        may_begin.set()
        assert in_body.wait(PATIENCE)

    def let_it_end(_: Work) -> None:
        may_end.set()
        assert ended.wait(PATIENCE)

    stage.sink.inert, stage.sink.wants_generation = False, True
    points.arm("maintenance:begin:after", let_it_begin)
    stage.runtime.on_head = let_it_end
    make_row(5, 4, 0, 0)
    with running(charge):
        assert deliver("t").outcome is Outcome.RAN
    assert (points.pending, stage.sink.prepared) == ([], [])
    assert (row_of().dirty, row_of().processed) == (6, 4)


def test_a_timer_that_has_come_announces_a_generation(frozen: FrozenClock, begun: list[Numbers]) -> None:
    make_row(4, 4, 2, 0, timer_at=frozen.at)
    deliver("t")
    assert begun == [(5, 4, 2, 50)]
    assert (row_of().processed, row_of().timer_at) == (5, None)


def test_a_timer_that_lies_ahead_announces_nothing(frozen: FrozenClock, stage: Stage) -> None:
    make_row(4, 4, 2, 0, timer_at=frozen.at + 900 * MS)
    deliver("t")
    assert (stage.calls, numbers(frozen.at)) == ([], (4, 4, 2, 900))


def test_a_caught_up_pass_whose_sink_cannot_say_its_deadline_fails_and_backs_off(
    frozen: FrozenClock, stage: Stage
) -> None:
    """It counts as due; if begin only failed instead, the row would stay due and nothing would be recorded."""
    stage.sink.inert, stage.sink.on_deadline = False, fail
    make_row(4, 4, 2, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert (result.outcome, "secret" in result.error) == (Outcome.FAILED, False)
    assert numbers(frozen.at) == (4, 4, 2, 500)
    assert row_of().failures == 1


def test_a_caught_up_pass_whose_projection_is_broken_fails_and_backs_off(frozen: FrozenClock, stage: Stage) -> None:
    """Its deadline counts as due and its backfill fails too; as a caught-up pass it would come back every 50 ms."""
    stage.projection.inert, stage.projection.on_deadline, stage.projection.on_drain = False, fail, fail
    make_row(4, 4, 2, 0)
    with fixed_jitter(0):
        assert deliver("t").outcome is Outcome.FAILED
    assert numbers(frozen.at) == (4, 4, 2, 500)


def test_what_a_port_raises_about_an_unknown_thread_escapes_no_delivery(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.ledger, "thread_exists", fail)
    result = passes.deliver(Delivery(thread_id="t"))
    assert (result.outcome, result.failed, "secret" in result.error) == (Outcome.FAILED, True, False)
