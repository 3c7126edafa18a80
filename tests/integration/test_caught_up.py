"""The caught-up and the gated pass: no canonical work, nothing acknowledged (alarm-host, 8.4; scenarios E).

With no deadline due the pass is one transaction. A sink holds canonical work back only if it `gates_execution`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance.delivery import Outcome
from maintenance.gate import mutation, prearmed_mutation
from maintenance.history import Report
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.testing import deliver, fixed_jitter
from tests.concurrency import elsewhere
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database
from tests.statements import counted_statements
from tests.stubs import fail

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]

MAINTENANCE_TABLES = (ThreadMaintenance._meta.db_table, PassRun._meta.db_table)


def caught_up(alarm: str, nonterminal: int = 2) -> Report:
    return Report(phase="caught-up", recovered=0, settled=0, nonterminal=nonterminal, alarm=alarm)


def test_e01_a_thread_that_owes_nothing_is_cleared(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 4, 2, 0)
    result = deliver("t")
    assert (result.outcome, result.report) == (Outcome.RAN, caught_up("cleared"))
    assert numbers(frozen.at) == (4, 4, 2, None)
    assert sent == []


def test_e01_the_pass_leaves_a_line_of_history_and_no_lease(frozen: FrozenClock) -> None:
    make_row(4, 4, 2, 0)
    deliver("t")
    run = PassRun.objects.get()
    assert (run.outcome, run.phase, run.generation, run.alarm) == ("ran", "caught-up", 4, "cleared")
    assert (run.due_at, row_of().lease_token) == (frozen.at, None)


def test_e02_a_forced_pass_of_a_quiet_thread_reads_neither_ledger_nor_log(stage: Stage) -> None:
    stage.ledger.on_scan = fail
    stage.runtime.on_recovery = stage.runtime.on_head = fail
    make_row(4, 4, 1)
    with counted_statements() as statements:
        result = deliver("t", forced=True)
    assert (result.outcome, stage.calls) == (Outcome.RAN, [])
    assert statements.beyond(*MAINTENANCE_TABLES) == []
    assert row_of().alarm_at is None


def test_e03_a_messages_deadline_ahead_becomes_the_slot(frozen: FrozenClock, stage: Stage) -> None:
    stage.messages.inert, stage.messages.deadline = False, frozen.at + 200 * MS
    make_row(4, 4, 2, 0)
    assert deliver("t").report == caught_up("rearmed")
    assert numbers(frozen.at) == (4, 4, 2, 200)
    assert stage.calls == []


def test_e04_a_sink_that_is_not_due_is_not_drained_and_the_slot_is_no_nearer_than_the_least_delay(
    frozen: FrozenClock, stage: Stage
) -> None:
    stage.sink.inert, stage.sink.deadline = False, frozen.at + 30 * MS
    make_row(4, 4, 2, 0)
    deliver("t")
    assert (stage.calls, numbers(frozen.at)) == ([], (4, 4, 2, 50))


def test_e05_a_sink_that_is_due_is_drained_once_and_the_slot_goes_with_its_deadline(
    frozen: FrozenClock, stage: Stage
) -> None:
    def deliver_everything() -> None:
        stage.sink.deadline = None

    stage.sink.inert, stage.sink.deadline, stage.sink.on_drain = False, frozen.at - 1 * MS, deliver_everything
    make_row(4, 4, 2, 0)
    assert deliver("t").report == caught_up("cleared")
    assert (stage.calls, numbers(frozen.at)) == (["drain"], (4, 4, 2, None))


def test_e07_a_pre_armed_mutation_in_flight_is_looked_for_again_a_scan_later(frozen: FrozenClock) -> None:
    make_row(4, 4, 2, 0, mutating_until=frozen.at + 60_000 * MS)
    assert deliver("t").report == caught_up("rearmed")
    assert numbers(frozen.at) == (4, 4, 2, 1000)


def test_e07_a_pre_armed_mutation_in_flight_at_a_leased_finish_too(frozen: FrozenClock, stage: Stage) -> None:
    def deliver_everything() -> None:
        stage.sink.deadline = None
        ThreadMaintenance.objects.update(mutating_until=frozen.at + 60_000 * MS)

    stage.sink.inert, stage.sink.deadline, stage.sink.on_drain = False, frozen.at, deliver_everything
    make_row(4, 4, 2, 0)
    assert deliver("t").report == caught_up("rearmed")
    assert numbers(frozen.at) == (4, 4, 2, 1000)


def raced_by_a_mutation(frozen: FrozenClock, stage: Stage) -> None:
    """Scripts a sink that is due, and a mutation that commits elsewhere while it is drained, 10 ms before finish."""

    def mutate() -> None:
        with mutation("t", wake=False):
            pass

    def drain() -> None:
        elsewhere(mutate)
        frozen.at += 10 * MS
        stage.sink.deadline = None

    stage.sink.inert, stage.sink.deadline, stage.sink.on_drain = False, frozen.at, drain


def raced_by_a_slot_at(ms: float, frozen: FrozenClock, stage: Stage, *, deadline_ms: float | None = None) -> None:
    """As above; the mutation left its slot at T+ms, and the sink has its next deadline at T+deadline_ms."""

    def drain() -> None:
        stage.sink.deadline = None if deadline_ms is None else frozen.at + deadline_ms * MS
        ThreadMaintenance.objects.update(dirty=5, alarm_at=frozen.at + ms * MS)

    stage.sink.inert, stage.sink.deadline, stage.sink.on_drain = False, frozen.at, drain


def test_e08_a_racing_mutation_keeps_its_slot_and_is_not_acknowledged(frozen: FrozenClock, stage: Stage) -> None:
    """The reference may move it up to a scan later; here the earlier of slot and now + scan stays."""
    start = frozen.at
    raced_by_a_mutation(frozen, stage)
    make_row(4, 4, 2, 0)
    assert deliver("t").report == caught_up("rearmed")
    assert numbers(start) == (5, 4, 2, 50)


def test_e08_the_next_pass_works_off_what_the_racing_mutation_left(frozen: FrozenClock, stage: Stage) -> None:
    raced_by_a_mutation(frozen, stage)
    make_row(4, 4, 2, 0)
    deliver("t")
    stage.sink.on_drain = None
    frozen.at += 40 * MS
    report = deliver("t").report
    assert report is not None
    assert report.phase == "actionable"
    assert numbers(frozen.at) == (5, 5, 0, None)


def test_e08_a_racing_slot_later_than_a_scan_is_pulled_to_the_scan(frozen: FrozenClock, stage: Stage) -> None:
    raced_by_a_slot_at(5000, frozen, stage)
    make_row(4, 4, 2, 0)
    deliver("t")
    assert numbers(frozen.at) == (5, 4, 2, 1000)


@pytest.mark.parametrize(("deadline", "slot"), [(20, 50), (300, 300), (950, 900)])
def test_e09_after_a_race_a_ports_earlier_deadline_counts_but_not_below_the_least_delay(
    frozen: FrozenClock, stage: Stage, deadline: float, slot: float
) -> None:
    raced_by_a_slot_at(900, frozen, stage, deadline_ms=deadline)
    make_row(4, 4, 2, 0)
    deliver("t")
    assert numbers(frozen.at) == (5, 4, 2, slot)


def test_e10_a_projection_that_cannot_say_its_deadline_at_finish_counts_as_due(
    frozen: FrozenClock, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def backfill(_: object) -> None:
        stage.projection.on_deadline = fail

    stage.projection.inert, stage.projection.deadline = False, frozen.at
    stage.projection.on_drain = backfill
    make_row(4, 4, 2, 0)
    assert deliver("t").report == caught_up("rearmed")
    assert numbers(frozen.at) == (4, 4, 2, 50)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_e11_a_gating_sink_that_still_owes_holds_canonical_work_back(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.gates_execution, stage.sink.deadline = False, True, frozen.at + 400 * MS
    make_row(5, 4, 2, 0, stalls=3)
    assert deliver("t").report == caught_up("rearmed")
    assert stage.calls == ["drain"]
    assert numbers(frozen.at) == (5, 4, 2, 400)
    assert row_of().stalls == 3


def test_e12_a_gated_thread_looks_again_after_a_scan_at_the_latest(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.gates_execution, stage.sink.deadline = False, True, frozen.at + 90_000 * MS
    make_row(5, 4, 2, 0)
    deliver("t")
    assert (stage.calls, numbers(frozen.at)) == (["drain"], (5, 4, 2, 1000))


def test_e12_a_sink_that_does_not_gate_holds_nothing_back(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.deadline = False, frozen.at + 90_000 * MS
    make_row(5, 4, 2, 0)
    deliver("t")
    assert "head" in stage.calls
    assert numbers(frozen.at) == (5, 5, 0, 90_000)


def test_e14_a_failing_message_wave_fails_the_pass_before_its_finish(
    frozen: FrozenClock, stage: Stage, points: Failpoints
) -> None:
    """Where the reference leaves begin's fallback, a failed pass backs off: half of 1 s at the least."""
    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, fail
    make_row(4, 4, 2, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("the message wave failed")
    assert "maintenance:finish:before" not in points.seen
    assert numbers(frozen.at) == (4, 4, 2, 500)


def test_e15_a_failing_backfill_fails_the_pass_after_the_wave_has_ended(
    frozen: FrozenClock, stage: Stage, points: Failpoints
) -> None:
    stage.projection.inert, stage.projection.deadline, stage.projection.on_drain = False, frozen.at, fail
    stage.messages.inert, stage.messages.deadline = False, frozen.at
    make_row(4, 4, 2, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("the projection backfill failed")
    assert sorted(stage.calls) == ["backfill", "wave"]
    assert "maintenance:finish:before" not in points.seen
    assert numbers(frozen.at) == (4, 4, 2, 500)


def test_e16_a_caught_up_pass_with_something_due_reaches_the_failpoints_of_finish(
    frozen: FrozenClock, stage: Stage, points: Failpoints
) -> None:
    """The one-transaction pass has no finish of its own."""
    stage.sink.inert, stage.sink.deadline = False, frozen.at
    make_row(4, 4, 2, 0)
    deliver("t")
    reached = [name for name in points.seen if name.startswith("maintenance:")]
    assert reached == [
        "maintenance:begin:before",
        "maintenance:begin:after",
        "maintenance:finish:before",
        "maintenance:finish:after",
    ]


def test_e17_a_producer_that_races_the_finish_of_a_publishing_pass_is_not_forgotten(
    frozen: FrozenClock, stage: Stage, points: Failpoints
) -> None:
    """The pass has published version 0; version 1 is committed just before its finish."""
    source, published = [0], []

    def drain() -> None:
        published.append(source[0])
        stage.sink.deadline = None

    def produce(_: str) -> None:
        with mutation("t", wake=False):
            source[0] = 1
            stage.sink.deadline = frozen.at

    stage.sink.inert, stage.sink.deadline, stage.sink.on_drain = False, frozen.at, drain
    points.arm("maintenance:finish:before", lambda thread_id: elsewhere(lambda: produce(thread_id)))
    make_row(4, 4, 2, 0)
    deliver("t")
    assert numbers(frozen.at) == (5, 4, 2, 50)
    frozen.at += 50 * MS
    deliver("t")
    assert published[:2] == [0, 1]
    assert numbers(frozen.at) == (5, 5, 0, None)


def test_a_pass_over_a_pre_armed_mutation_of_a_gated_thread_stays_dirty(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.gates_execution, stage.sink.deadline = False, True, frozen.at + 90_000 * MS
    make_row(4, 4, 2, 0)
    with prearmed_mutation("t", "charge"):
        frozen.at += 50 * MS
        start = frozen.at
        deliver("t")
        assert numbers(start) == (5, 4, 2, 1000)
