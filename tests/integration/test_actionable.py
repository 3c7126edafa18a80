"""What an actionable pass decides: acknowledgement, slot, stalls, report (alarm-host, 8.5 and 8.6; scenarios F).

Given R(5, 4, 1, T), begin at T, finish at T+10. `test_pass_steps` has the order of the steps and their failures.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from maintenance.gate import mutation, prearmed_mutation
from maintenance.history import Report
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.ports import RecoveryReport, Residue
from maintenance.testing import deliver, fixed_jitter
from tests.concurrency import elsewhere
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database
from tests.passes import CLAIMABLE, DEFERRED, GOING_ON, REPAIRED, UNKNOWN, WAITING, mutate_elsewhere, run_pass

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.ports import Work
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]


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


def test_g09_the_stalls_are_kept_across_workers(frozen: FrozenClock, stage: Stage) -> None:
    stage.ledger.residue = GOING_ON
    make_row(5, 4, 1, 0)
    waits = []
    with fixed_jitter(0):
        for _ in range(3):
            elsewhere(lambda: deliver("t"))
            at = row_of().alarm_at
            assert at is not None
            waits.append((at - frozen.at) / MS)
            frozen.at = at
    assert waits == [50, 100, 200]


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


@pytest.mark.parametrize("reports", [(), (DEFERRED,), (UNKNOWN,), (DEFERRED, UNKNOWN)], ids=len)
def test_f18_deferred_and_unknown_reports_are_no_progress(
    frozen: FrozenClock, stage: Stage, reports: tuple[RecoveryReport, ...]
) -> None:
    stage.ledger.residue, stage.runtime.reports = GOING_ON, reports
    make_row(5, 4, 1, 0, stalls=2)
    assert run_pass(frozen, stage).recovered == len(reports)
    assert row_of().stalls == 3


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
