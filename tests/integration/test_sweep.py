"""The sweep: which slots it hands over, in which order, how often (alarm-host, 15.7; L-38 to L-40)."""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from django.db import transaction

from maintenance import clock, dispatch, sweep
from maintenance.delivery import Outcome
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.ports import Work
from maintenance.testing import deliver, fixed_jitter, run_due_passes
from tests.arrivals import lease_of_another, stored
from tests.concurrency import PATIENCE, elsewhere, running
from tests.factories import MS, make_row, row_of
from tests.marks import maintenance_database
from tests.statements import counted_statements
from tests.stubs import fail

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db

committed = maintenance_database
"""For what another connection must see."""

HOUR = timedelta(hours=1)


def make_due(count: int, *, first_ms: float = 0, **columns: object) -> None:
    """Makes that many dirty threads, due one after the other a millisecond apart, none ever handed over."""
    now = clock.now()
    ThreadMaintenance.objects.bulk_create(
        ThreadMaintenance(
            thread_id=f"t{number:05}", dirty=1, alarm_at=now + (first_ms + number) * MS, alarm_seq=1, **columns
        )
        for number in range(count)
    )


def handed_over(sent: list[Hint]) -> list[str]:
    """The threads whose hints went out since the last look, in order."""
    threads = [hint.thread_id for hint in sent]
    sent.clear()
    return threads


# --- Which slots --------------------------------------------------------------------------------


def test_a_slot_that_was_never_handed_over_goes_out_once(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, 0, 7)

    assert (sweep.sweep(), sweep.sweep()) == (1, 0)

    assert [(hint.seq, hint.eta, hint.trigger) for hint in sent] == [(7, None, "sweep")]
    row = row_of()
    assert (row.hint_seq, row.hint_at, row.hint_attempts) == (7, frozen.at, 1)


@pytest.mark.parametrize(("ahead_ms", "count"), [(0, 1), (59_999, 1), (60_000, 1), (60_001, 0)])
def test_a_slot_goes_out_when_it_is_within_the_horizon(
    frozen: FrozenClock, sent: list[Hint], ahead_ms: int, count: int
) -> None:
    make_row(4, 3, 0, ahead_ms)

    assert sweep.sweep() == count

    assert [hint.eta for hint in sent] == [frozen.at + ahead_ms * MS if ahead_ms else None] * count


@pytest.mark.parametrize("column", ["paused_at", "quarantined_at"])
def test_a_thread_that_is_held_back_is_left_out(frozen: FrozenClock, sent: list[Hint], column: str) -> None:
    make_row(4, 3, 0, -3_600_000)
    ThreadMaintenance.objects.update(**{column: frozen.at})

    assert sweep.sweep() == 0


def test_a_live_lease_hides_a_slot_until_it_expires(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, -5, **lease_of_another(left=20_000 * MS))

    frozen.at += 19_999 * MS
    assert sweep.sweep() == 0
    frozen.at += MS
    assert sweep.sweep() == 1


def test_a_slot_that_moved_after_its_message_goes_out_again(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, 0, 8, hint_seq=7, hint_at=frozen.at, hint_attempts=6)

    assert sweep.sweep() == 1
    assert (row_of().hint_seq, row_of().hint_attempts) == (8, 1)


def test_e7_a_slot_that_was_moved_behind_our_back_goes_out_within_a_sweep(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    """A bulk update or raw SQL fires no signal and grows no sequence."""
    make_due(10, first_ms=7_200_000)
    assert sweep.sweep() == 0

    ThreadMaintenance.objects.update(alarm_at=frozen.at)

    assert sweep.sweep() == 10


def test_k3_a_deadline_three_days_ago_runs_once_and_its_lateness_is_told(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, -3 * 24 * 3_600_000)

    assert sweep.sweep() == 1
    assert [result.outcome for result in run_due_passes()] == [Outcome.RAN]

    run = PassRun.objects.get()
    assert run.due_at is not None
    assert run.started_at - run.due_at == timedelta(days=3)


def test_a_sweep_changes_nothing_but_the_hand_over(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 2, -10, 7, stalls=3, failures=2)
    before = stored()

    sweep.sweep()

    after = stored()
    assert {name for name in after if after[name] != before[name]} == {"hint_seq", "hint_at", "hint_attempts"}


def test_an_idle_sweep_is_one_statement(sent: list[Hint]) -> None:
    make_due(3, first_ms=7_200_000)

    with counted_statements() as statements:
        assert sweep.sweep() == 0

    assert len(statements) == 1


# --- How many, in which order -------------------------------------------------------------------


def test_l38_a_sweep_takes_one_batch_earliest_first(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_due(1_200, first_ms=-10_000)
    everyone = [f"t{number:05}" for number in range(1_200)]

    batches = []
    while sweep.sweep():
        batches.append(handed_over(sent))

    assert [len(batch) for batch in batches] == [500, 500, 200]
    assert [thread for batch in batches for thread in batch] == everyone


def test_a_smaller_limit_takes_fewer(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_due(5)

    assert sweep.sweep(2) == 2
    assert handed_over(sent) == ["t00000", "t00001"]


def test_e8_of_equal_deadlines_all_run_once_and_paused_ones_starve_nobody(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], settings: Settings
) -> None:
    settings.MAINTENANCE = {"SWEEP_BATCH": 20}
    make_due(50)
    ThreadMaintenance.objects.update(alarm_at=frozen.at)
    paused = [f"t{number:05}" for number in range(0, 50, 10)]
    ThreadMaintenance.objects.filter(pk__in=paused).update(alarm_at=frozen.at - HOUR, paused_at=frozen.at)

    while sweep.sweep():
        pass
    sent_once = handed_over(sent)
    assert sweep.sweep() == 0, "a sweeper that restarts right after it sent sends nothing twice"

    assert len(sent_once) == len(set(sent_once)) == 45
    assert set(sent_once) & set(paused) == set()
    assert len(run_due_passes()) == 45
    assert set(PassRun.objects.values_list("thread_id", flat=True)) == set(sent_once)


def test_k7_threads_that_always_fail_move_out_of_the_way_of_the_others(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], settings: Settings
) -> None:
    """A hundred expired threads, ten a sweep, the first ten fail every time: the others are done in eleven sweeps."""
    settings.MAINTENANCE = {"SWEEP_BATCH": 10}
    make_due(100, first_ms=-10_000)
    stage.runtime.on_head = lambda work: fail() if work.thread_id < "t00010" else None

    sweeps = 0
    while ThreadMaintenance.objects.filter(pk__gte="t00010", alarm_at__isnull=False).exists():
        sweep.sweep()
        sweeps += 1
        with fixed_jitter(0):
            for thread_id in handed_over(sent):
                deliver(thread_id)
        frozen.at += 100 * MS

    assert sweeps <= 11
    failing = ThreadMaintenance.objects.filter(pk__lt="t00010")
    assert all(row.failures and row.alarm_at is not None for row in failing)


# --- How often ----------------------------------------------------------------------------------


def moments_of_hand_over(frozen: FrozenClock, start: datetime, until: float) -> list[float]:
    """Sweeps every second; the seconds after the start at which a hint went out."""
    seen = []
    while (frozen.at - start) / timedelta(seconds=1) < until:
        frozen.at += timedelta(seconds=1)
        if sweep.sweep():
            seen.append((frozen.at - start) / timedelta(seconds=1))
    return seen


def test_l39_an_overdue_slot_without_workers_goes_out_after_a_doubling_grace(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 0)
    start = frozen.at
    assert sweep.sweep() == 1

    waits = [5, 10, 20, 40, 80, 160, 320, 320]
    assert moments_of_hand_over(frozen, start, sum(waits)) == [sum(waits[: n + 1]) for n in range(len(waits))]


def test_a_slot_that_went_out_with_an_eta_goes_out_without_one_a_sweep_interval_after_it(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    """A broker that loses or holds delayed messages costs one sweep interval (field report A8)."""
    make_row(4, 3, 0, 3_000)
    start = frozen.at
    assert sweep.sweep() == 1
    assert sent[0].eta is not None

    assert moments_of_hand_over(frozen, start, 20) == [4, 14]
    assert [hint.eta for hint in sent[1:]] == [None, None]


def test_a_pass_that_moves_the_slot_starts_the_grace_anew(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, 0, 9, hint_seq=9, hint_at=frozen.at - HOUR, hint_attempts=7)
    stage.runtime.on_head = fail

    deliver("t")

    assert row_of().hint_attempts == 1


def test_slots_in_their_grace_starve_no_slot_behind_them(
    frozen: FrozenClock, sent: list[Hint], settings: Settings
) -> None:
    settings.MAINTENANCE = {"SWEEP_BATCH": 1}
    make_due(4, first_ms=-3_600_000, hint_seq=1, hint_at=frozen.at - timedelta(minutes=1), hint_attempts=7)
    make_row(4, 3, 0, 0, thread_id="behind them")

    assert sweep.sweep() == 1

    assert handed_over(sent) == ["behind them"]


# --- A broker that refuses ----------------------------------------------------------------------


def test_the_first_refused_hint_ends_the_batch_and_the_rest_is_unmarked(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def take_three(hint: Hint) -> None:
        tried.append(hint.thread_id)
        if len(tried) > 3:
            raise ConnectionRefusedError

    monkeypatch.setattr(dispatch, "send", take_three)
    make_due(10)

    assert sweep.sweep() == 3

    assert len(tried) == 4
    assert ThreadMaintenance.objects.filter(hint_seq__isnull=False).count() == 3


def test_the_next_sweep_after_the_broker_is_back_sends_what_was_unmarked(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Hint) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(dispatch, "send", refuse)
    make_due(3)
    assert sweep.sweep() == 0
    sent: list[Hint] = []
    monkeypatch.setattr(dispatch, "send", sent.append)
    dispatch.close_breaker()

    assert sweep.sweep() == 3
    assert len(sent) == 3


# --- Two at a time ------------------------------------------------------------------------------


@committed
@pytest.mark.postgres
def test_l40_two_sweepers_share_the_rows_and_each_goes_out_once(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_due(1_000)
    together = Barrier(2)

    def sweep_all() -> int:
        together.wait(PATIENCE)
        count = 0
        while taken := sweep.sweep():
            count += taken
        return count

    with running(sweep_all, sweep_all):
        pass

    assert len(sent) == 1_000
    assert len(set(handed_over(sent))) == 1_000


@committed
@pytest.mark.postgres
def test_f2_a_row_that_somebody_holds_stops_no_sweep(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_due(10)

    with transaction.atomic():
        ThreadMaintenance.objects.select_for_update().get(pk="t00004")
        assert elsewhere(sweep.sweep) == 9

    assert "t00004" not in handed_over(sent)
    assert sweep.sweep() == 1


@committed
def test_l2_a_sweep_that_marks_a_thread_after_its_pass_has_ended_brings_nothing_back(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    """The sweep read the row as due, the worker commits its end, the sweep writes: done stays done."""
    make_row(4, 3, 0, 0)
    (claimed,) = sweep.claim(10)
    deliver("t")
    before = stored()

    assert dispatch.publish(dispatch.hint_for("t", claimed.seq, claimed.due_at, claimed.now, trigger="sweep"))
    assert stored() == before
    assert deliver("t").outcome is Outcome.CLEARED


def test_a_pass_that_runs_is_not_swept_while_it_works(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    swept: list[int] = []

    def look(_: Work) -> None:
        frozen.at += 10_000 * MS
        swept.append(sweep.sweep())

    stage.runtime.on_head = look
    make_row(4, 3, 0, 0)

    deliver("t")

    assert swept == [0]
