"""The actionable pass: recovery, one head, what is left, acknowledgement and slot (alarm-host, 8.5; scenarios F).

Given R(5, 4, 1, T), begin at T, finish at T+10. What a pass writes under its own lease announces no generation, so a
pass that settled its head is acknowledged. A failed pass backs off where the reference leaves begin's fallback.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from threading import Event
from typing import TYPE_CHECKING

import pytest

from maintenance import clock
from maintenance import work as work_module
from maintenance.delivery import Outcome
from maintenance.gate import mutation, prearmed_mutation
from maintenance.history import Report
from maintenance.models import PassRun, ThreadMaintenance, WorkerHeartbeat
from maintenance.ports import RecoveryReport, Residue
from maintenance.testing import deliver, fixed_jitter, run_due_passes
from tests.concurrency import PATIENCE, elsewhere
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database
from tests.statements import counted_statements
from tests.stubs import be_interrupted, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from maintenance.clock import FrozenClock
    from maintenance.ports import Work
    from tests.stubs import Body, Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]

REPAIRED = RecoveryReport(submission_id="s", decision="RepairInputMarker", disposition="repaired")
DEFERRED = RecoveryReport(submission_id="s", decision="ResumeFromTurnBoundary", disposition="deferred")
UNKNOWN = RecoveryReport(submission_id="s", decision="AwaitUnknownResolution", disposition="unknown")

WAITING = Residue(nonterminal=1)
"""One submission that waits for something outside."""
GOING_ON = Residue(nonterminal=1, autonomous=True)
"""One submission that can go on by itself, but cannot be claimed at once."""
CLAIMABLE = Residue(nonterminal=1, autonomous=True, claimable_head=True)


def run_pass(frozen: FrozenClock, stage: Stage, *, during: Body | None = None) -> Report:
    """Runs the pass of the row at its slot, the head attempt taking 10 ms; it must run to its end."""

    def take_ten_milliseconds(work: Work) -> None:
        if during is not None:
            during(work)
        frozen.at += 10 * MS

    stage.runtime.on_head = take_ten_milliseconds
    result = deliver("t")
    assert result.outcome is Outcome.RAN
    assert result.report is not None
    return result.report


def repair(name: str) -> None:
    """A write of canonical work; a heartbeat row stands for it."""
    WorkerHeartbeat.objects.create(worker=name, seen_at=clock.now(), started_at=clock.now())


def is_durable(name: str) -> bool:
    return WorkerHeartbeat.objects.filter(worker=name).exists()


def mutate_elsewhere(_: object = None) -> None:
    def mutate() -> None:
        with mutation("t", wake=False):
            pass

    elsewhere(mutate)


def test_f01_with_nothing_left_the_generation_is_acknowledged_and_the_slot_cleared(
    frozen: FrozenClock, stage: Stage
) -> None:
    start, stage.runtime.settled = frozen.at, 1
    make_row(5, 4, 1, 0)
    report = run_pass(frozen, stage)
    assert report == Report(phase="actionable", recovered=0, settled=1, nonterminal=0, alarm="cleared")
    assert numbers(start) == (5, 5, 0, None)


def test_f02_a_stable_wait_keeps_no_alarm_and_is_counted(frozen: FrozenClock, stage: Stage) -> None:
    start, stage.ledger.residue = frozen.at, WAITING
    make_row(5, 4, 1, 0)
    report = run_pass(frozen, stage)
    assert (report.nonterminal, report.alarm) == (1, "cleared")
    assert numbers(start) == (5, 5, 1, None)


@pytest.mark.parametrize(
    ("residue", "settled", "reports", "slot"),
    [
        pytest.param(CLAIMABLE, 1, (), 10, id="settled-and-a-claimable-head-is-left"),
        pytest.param(GOING_ON, 1, (), 110, id="settled-and-the-rest-cannot-be-claimed"),
        pytest.param(CLAIMABLE, 0, (REPAIRED,), 110, id="a-repair-alone"),
    ],
)
def test_f03_after_progress_the_thread_goes_on_soon_and_its_stalls_are_forgotten(
    frozen: FrozenClock,
    stage: Stage,
    residue: Residue,
    settled: int,
    reports: tuple[RecoveryReport, ...],
    slot: float,
) -> None:
    """The reference waits one base; here a settlement that leaves a claimable head goes on at once."""
    start = frozen.at
    stage.ledger.residue, stage.runtime.settled, stage.runtime.reports = residue, settled, reports
    make_row(5, 4, 1, 0, stalls=3)
    assert run_pass(frozen, stage).alarm == "rearmed"
    assert numbers(start) == (5, 4, 1, slot)
    assert row_of().stalls == 0


def test_f03_a_fenced_record_of_progress_counts_as_a_settlement(frozen: FrozenClock, stage: Stage) -> None:
    def record_progress(work: Work) -> None:
        with work.fenced(progress=True):
            pass

    start, stage.ledger.residue = frozen.at, CLAIMABLE
    make_row(5, 4, 1, 0, stalls=3)
    run_pass(frozen, stage, during=record_progress)
    assert (numbers(start), row_of().stalls) == ((5, 4, 1, 10), 0)


@pytest.mark.parametrize(("stalls", "u", "slot"), [(0, 0.0, 60), (0, 0.5, 85), (3, 0.0, 410), (9, 0.5, 1010)], ids=str)
def test_f04_without_progress_the_thread_backs_off(
    frozen: FrozenClock, stage: Stage, stalls: int, u: float, slot: float
) -> None:
    start, stage.ledger.residue = frozen.at, CLAIMABLE
    make_row(5, 4, 1, 0, stalls=stalls)
    with fixed_jitter(u):
        assert run_pass(frozen, stage).alarm == "rearmed"
    assert (numbers(start), row_of().stalls) == ((5, 4, 1, slot), stalls + 1)


@pytest.mark.parametrize("port", ["sink", "messages", "projection"])
@pytest.mark.parametrize(("u", "deadline", "slot"), [(0.0, 30, 60), (0.9, 85, 85), (0.5, 5000, 85)], ids=str)
def test_f05_a_ports_earlier_deadline_shortens_the_backoff_but_not_below_the_least_delay(
    frozen: FrozenClock, stage: Stage, port: str, u: float, deadline: float, slot: float
) -> None:
    start, stage.ledger.residue = frozen.at, GOING_ON
    scripted = getattr(stage, port)
    scripted.inert, scripted.deadline = False, frozen.at + deadline * MS
    make_row(5, 4, 1, 0)
    with fixed_jitter(u):
        run_pass(frozen, stage)
    assert numbers(start) == (5, 4, 1, slot)


def test_f06_a_racing_mutation_is_left_to_the_next_pass_at_its_own_slot(frozen: FrozenClock, stage: Stage) -> None:
    start = frozen.at
    make_row(5, 4, 1, 0)
    assert run_pass(frozen, stage, during=mutate_elsewhere).alarm == "rearmed"
    assert numbers(start) == (6, 5, 0, 50)


def test_f06_a_racing_mutation_that_wakes_is_due_at_once(frozen: FrozenClock, stage: Stage) -> None:
    def wake() -> None:
        with mutation("t"):
            pass

    start = frozen.at
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage, during=lambda _: elsewhere(wake))
    assert numbers(start) == (6, 5, 0, 0)


def test_f07_the_next_pass_works_off_the_racing_generation(frozen: FrozenClock, stage: Stage) -> None:
    start = frozen.at
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage, during=mutate_elsewhere)
    frozen.at = start + 50 * MS
    generations: list[int | None] = []
    run_pass(frozen, stage, during=lambda work: generations.append(work.generation))
    assert (generations, numbers(start)) == ([6], (6, 6, 0, None))


def test_f09_a_mutation_in_flight_at_finish_keeps_the_generation_and_its_slot(
    frozen: FrozenClock, stage: Stage
) -> None:
    def begin_charging(_: Work) -> None:
        body.enter_context(prearmed_mutation("t", "charge"))

    start = frozen.at
    make_row(5, 4, 1, 0)
    with ExitStack() as body:
        assert run_pass(frozen, stage, during=begin_charging).alarm == "rearmed"
        assert numbers(start) == (6, 4, 0, 50)


@pytest.mark.parametrize(("deadline", "slot"), [(900, 900), (20, 60)], ids=["f10-ahead", "f11-near"])
def test_f10_f11_with_nothing_autonomous_a_ports_deadline_becomes_the_slot(
    frozen: FrozenClock, stage: Stage, deadline: float, slot: float
) -> None:
    start = frozen.at
    stage.messages.inert, stage.messages.deadline = False, frozen.at + deadline * MS
    make_row(5, 4, 1, 0)
    assert run_pass(frozen, stage).alarm == "rearmed"
    assert numbers(start) == (5, 5, 0, slot)


def test_f10_a_durable_timer_becomes_the_slot_and_stays_on_the_row(frozen: FrozenClock, stage: Stage) -> None:
    start = frozen.at
    stage.ledger.residue = Residue(nonterminal=1, next_due=frozen.at + 90_000 * MS)
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert numbers(start) == (5, 5, 1, 90_000)
    assert row_of().timer_at == start + 90_000 * MS


def test_f12_an_acknowledgement_never_goes_back(frozen: FrozenClock, stage: Stage) -> None:
    def be_acknowledged_by_another(_: Work) -> None:
        ThreadMaintenance.objects.update(dirty=7, processed=7)

    start = frozen.at
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage, during=be_acknowledged_by_another)
    assert numbers(start) == (7, 7, 0, None)


def test_f13_autonomous_work_decides_the_slot_even_after_a_race(frozen: FrozenClock, stage: Stage) -> None:
    start, stage.ledger.residue = frozen.at, GOING_ON
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        run_pass(frozen, stage, during=mutate_elsewhere)
    assert numbers(start) == (6, 4, 1, 60)


def test_f14_a_pass_does_its_steps_in_order(frozen: FrozenClock, stage: Stage) -> None:
    """The wave runs beside the rest, so it is only known to lie between the preparation and the scan."""
    stage.sink.inert, stage.sink.wants_generation, stage.sink.gates_execution = False, True, True
    stage.sink.on_deadline = lambda: stage.calls.append("deadline")
    stage.projection.inert, stage.projection.deadline = False, frozen.at
    stage.messages.inert, stage.messages.deadline = False, frozen.at
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert stage.calls.index("prepare") < stage.calls.index("wave") < stage.calls.index("scan")
    assert [call for call in stage.calls if call != "wave"] == [
        "prepare",
        "backfill",
        "drain",
        "deadline",
        "recovery",
        "head",
        "drain",
        "scan",
        "deadline",
    ]


def test_f15_each_pass_attempts_one_head(stage: Stage) -> None:
    ready = [1, 2, 3]
    heads_by_pass: list[int] = []

    def settle(_: Work) -> None:
        ready.pop()
        stage.ledger.residue = Residue(nonterminal=len(ready), autonomous=bool(ready), claimable_head=bool(ready))
        heads_by_pass.append(stage.calls.count("head"))

    stage.runtime.settled, stage.runtime.on_head = 1, settle
    make_row(5, 4, 3, 0)
    results = run_due_passes()
    assert [result.report.nonterminal for result in results if result.report] == [2, 1, 0]
    assert heads_by_pass == [1, 2, 3]


def test_f16_the_head_is_asked_to_yield_ten_minutes_after_the_pass_began(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, asked = [1_000.0], []

    class Monotonic:
        @staticmethod
        def monotonic() -> float:
            return at[0]

    def watch(work: Work) -> None:
        for at[0] in (1_000.0, 1_599.9, 1_600.0):
            asked.append(work.should_yield())

    monkeypatch.setattr(work_module, "time", Monotonic)
    stage.runtime.on_head = watch
    make_row(5, 4, 1, 0)
    deliver("t")
    assert asked == [False, False, True]


@pytest.mark.parametrize("reports", [(), (DEFERRED,), (UNKNOWN,), (DEFERRED, UNKNOWN)], ids=len)
def test_f18_deferred_and_unknown_reports_are_no_progress(
    frozen: FrozenClock, stage: Stage, reports: tuple[RecoveryReport, ...]
) -> None:
    stage.ledger.residue, stage.runtime.reports = GOING_ON, reports
    make_row(5, 4, 1, 0, stalls=2)
    assert run_pass(frozen, stage).recovered == len(reports)
    assert row_of().stalls == 3


def test_f19_every_sink_is_drained_before_and_after_canonical_work_even_without_a_deadline(
    frozen: FrozenClock, stage: Stage
) -> None:
    """The second time, so that the settlement of this pass does not cost another one."""
    stage.sink.inert = False
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert stage.calls == ["drain", "recovery", "head", "drain", "scan"]


@pytest.mark.postgres
def test_f20_a_slow_wave_keeps_no_attempt_waiting_and_finish_waits_for_it(frozen: FrozenClock, stage: Stage) -> None:
    attempted = Event()

    def be_slow(_: Work) -> None:
        assert attempted.wait(PATIENCE)
        stage.calls.append("wave ended")

    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, be_slow
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage, during=lambda _: attempted.set())
    assert stage.calls[-2:] == ["wave ended", "scan"]


def test_f21_finish_sees_the_deadline_that_the_wave_left(frozen: FrozenClock, stage: Stage) -> None:
    start = frozen.at

    def deliver_messages(_: Work) -> None:
        stage.messages.deadline = start + 300 * MS

    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, start, deliver_messages
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert numbers(start) == (5, 5, 0, 300)


def test_f22_a_failing_backfill_lets_canonical_work_have_its_turn_and_then_fails_the_pass(
    frozen: FrozenClock, stage: Stage
) -> None:
    """The head settled: the failed pass made progress and comes back after one base."""

    def settle(work: Work) -> None:
        with work.fenced(progress=True):
            repair("settled")

    stage.projection.inert, stage.projection.deadline, stage.projection.on_drain = False, frozen.at, fail
    stage.runtime.settled, stage.runtime.on_head = 1, settle
    make_row(5, 4, 1, 0)
    result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("the projection backfill failed")
    assert is_durable("settled")
    assert numbers(frozen.at) == (5, 4, 1, 100)


def test_f23_an_interrupted_backfill_ends_the_pass_at_once_without_backoff(frozen: FrozenClock, stage: Stage) -> None:
    stage.projection.inert, stage.projection.deadline = False, frozen.at
    stage.projection.on_drain = be_interrupted
    make_row(5, 4, 1, 0)
    result = deliver("t")
    assert (result.outcome, result.failed) == (Outcome.INTERRUPTED, False)
    assert stage.calls == ["backfill"]
    assert (numbers(frozen.at), row_of().failures) == ((5, 4, 1, 50), 0)


def test_f24_a_failing_sink_keeps_canonical_work_from_running(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.on_drain = False, fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("a publication sink failed")
    assert stage.calls == ["drain"]
    assert (numbers(frozen.at), row_of().failures) == ((5, 4, 1, 500), 1)


@pytest.mark.postgres
@pytest.mark.parametrize("ending", [fail, be_interrupted], ids=["f24-failed", "f23-interrupted"])
def test_f23_f24_the_wave_of_a_pass_that_ends_early_is_stopped_before_the_thread_is_let_go(
    frozen: FrozenClock, stage: Stage, ending: Callable[[], None]
) -> None:
    never, waving = Event(), Event()
    let_go: list[bool] = []

    def wave(work: Work) -> None:
        waving.set()
        try:
            while not never.wait(0.01):
                work.checkpoint()
        finally:
            let_go.append(row_of().lease_token is None)

    def end_early() -> None:
        assert waving.wait(PATIENCE)
        ending()

    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, wave
    stage.sink.inert, stage.sink.on_drain = False, end_early
    make_row(5, 4, 1, 0)
    deliver("t")
    assert let_go == [False]
    assert row_of().lease_token is None


def test_f25_a_recovery_that_fails_keeps_its_repairs_and_attempts_no_head(frozen: FrozenClock, stage: Stage) -> None:
    def repair_one_and_fail(work: Work) -> None:
        with work.fenced():
            repair("first")
        fail()

    stage.runtime.on_recovery = repair_one_and_fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("recovery failed")
    assert (is_durable("first"), stage.calls) == (True, ["recovery"])
    assert numbers(frozen.at) == (5, 4, 1, 500)


def test_f26_a_head_that_fails_acknowledges_nothing(frozen: FrozenClock, stage: Stage) -> None:
    stage.runtime.on_head = fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("the head attempt failed")
    assert stage.calls == ["recovery", "head"]
    assert numbers(frozen.at) == (5, 4, 1, 500)


def test_f27_a_residual_scan_that_fails_acknowledges_nothing(frozen: FrozenClock, stage: Stage) -> None:
    stage.ledger.on_scan = fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert (result.outcome, "secret" in result.error) == (Outcome.FAILED, False)
    assert numbers(frozen.at) == (5, 4, 1, 500)


def test_f29_a_pass_that_clears_the_slot_forgets_the_stalls(frozen: FrozenClock, stage: Stage) -> None:
    make_row(5, 4, 1, 0, stalls=3)
    assert run_pass(frozen, stage).alarm == "cleared"
    assert row_of().stalls == 0


def test_f29_a_pass_that_was_raced_keeps_the_stalls(frozen: FrozenClock, stage: Stage) -> None:
    make_row(5, 4, 1, 0, stalls=3)
    assert run_pass(frozen, stage, during=mutate_elsewhere).alarm == "rearmed"
    assert row_of().stalls == 3


def test_f29_a_pass_that_waits_for_a_ports_deadline_keeps_the_stalls(frozen: FrozenClock, stage: Stage) -> None:
    stage.messages.inert, stage.messages.deadline = False, frozen.at + 900 * MS
    make_row(5, 4, 1, 0, stalls=3)
    assert run_pass(frozen, stage).alarm == "rearmed"
    assert row_of().stalls == 3


@pytest.mark.parametrize("dirty", [5, 4], ids=["actionable", "caught-up"])
def test_f30_history_and_row_keep_the_report_of_the_pass(frozen: FrozenClock, stage: Stage, dirty: int) -> None:
    stage.runtime.reports, stage.runtime.settled, stage.ledger.residue = (DEFERRED,), 1, WAITING
    make_row(dirty, 4, 1, 0)
    report = deliver("t").report
    assert report is not None
    names = ("phase", "recovered", "settled", "nonterminal", "alarm")
    assert PassRun.objects.values(*names).get() == asdict(report)
    assert row_of().last_report == asdict(report)


def test_f31_what_a_pass_settles_under_its_own_lease_costs_no_second_pass(frozen: FrozenClock, stage: Stage) -> None:
    def settle(work: Work) -> None:
        with work.fenced(progress=True):
            repair("settled")

    start, stage.runtime.settled = frozen.at, 1
    make_row(5, 4, 1, 0)
    assert run_pass(frozen, stage, during=settle).alarm == "cleared"
    assert numbers(start) == (5, 5, 0, None)


def test_f31_a_hooks_write_that_finish_does_not_scan_announces_a_generation(frozen: FrozenClock, stage: Stage) -> None:
    def write_an_outcome(work: Work) -> None:
        with work.fenced(bump=True):
            pass

    start = frozen.at
    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, write_an_outcome
    stage.ledger.on_scan = lambda: setattr(stage.messages, "deadline", None)
    make_row(5, 4, 1, 0)
    assert run_pass(frozen, stage).alarm == "rearmed"
    assert numbers(start)[:2] == (6, 5)


def test_f32_a_pass_over_stable_waits_writes_nothing_but_its_own_bookkeeping(frozen: FrozenClock, stage: Stage) -> None:
    stage.ledger.residue = WAITING
    make_row(5, 4, 1, 0)
    with counted_statements() as statements:
        run_pass(frozen, stage)
    assert statements.beyond(ThreadMaintenance._meta.db_table, PassRun._meta.db_table) == []
    assert row_of().dirty == 5


@pytest.mark.parametrize(("deadline", "slot"), [(300, 300), (20, 60), (None, 1010)], ids=str)
def test_f35_a_mutation_in_flight_from_begin_to_finish_costs_one_pass_a_scan(
    frozen: FrozenClock, stage: Stage, deadline: float | None, slot: float
) -> None:
    start = frozen.at
    if deadline is not None:
        stage.messages.inert, stage.messages.deadline = False, start + deadline * MS
    make_row(5, 4, 1, 0, mutating_until=start + 60_000 * MS)
    run_pass(frozen, stage)
    assert numbers(start) == (5, 4, 0, slot)


def test_f35_a_mutation_that_was_in_flight_at_begin_only_is_looked_at_again(frozen: FrozenClock, stage: Stage) -> None:
    def end(_: Work) -> None:
        ThreadMaintenance.objects.update(mutating_until=None)

    start = frozen.at
    make_row(5, 4, 1, 0, mutating_until=start + 60_000 * MS)
    run_pass(frozen, stage, during=end)
    assert numbers(start) == (5, 4, 0, 1010)
