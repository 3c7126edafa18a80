"""How long a failed pass waits, and when a thread is taken for poison (alarm-host, 15.8; K-08, K-09, K-13)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from maintenance import metrics, operations, sweep
from maintenance.delivery import Outcome
from maintenance.gate import mutation
from maintenance.ports import Work
from maintenance.testing import Crash, deliver, fixed_jitter
from tests.arrivals import LEASE
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database
from tests.stubs import fail

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db

committed = maintenance_database
"""For what happens after a commit."""


# --- Backoff ------------------------------------------------------------------------------------


def fail_times(stage: Stage, frozen: FrozenClock, times: int) -> list[float]:
    """The waits, in ms, that so many failed passes in a row earned."""
    stage.runtime.on_head = fail
    make_row(5, 4, 1, 0)
    waits = []
    for _ in range(times):
        deliver("t")
        slot = row_of().alarm_at
        assert slot is not None
        waits.append((slot - frozen.at) / MS)
        frozen.at = slot
    return waits


@pytest.mark.parametrize(
    ("u", "waits"),
    [
        (0.0, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]),
        (0.5, [750, 1_500, 3_000, 6_000, 12_000, 24_000, 45_000, 45_000]),
        (1.0, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]),
    ],
)
def test_k08_failures_in_a_row_wait_doubled_and_jittered_up_to_a_minute(
    stage: Stage, frozen: FrozenClock, u: float, waits: list[float]
) -> None:
    with fixed_jitter(u):
        assert fail_times(stage, frozen, len(waits)) == waits
    assert row_of().failures == len(waits)


def test_k08_a_pass_that_ends_well_forgets_the_failures(stage: Stage, frozen: FrozenClock) -> None:
    fail_times(stage, frozen, 3)
    stage.runtime.on_head = None

    deliver("t")

    assert row_of().failures == 0


def test_a_failure_long_ago_and_thousands_of_times_overflows_nothing(stage: Stage, frozen: FrozenClock) -> None:
    stage.runtime.on_head = fail
    make_row(5, 4, 1, 0, failures=5_000)

    with fixed_jitter(1):
        deliver("t")

    assert numbers(frozen.at)[3] == 60_000


@committed
def test_k09_a_racing_mutation_bounds_the_wait_by_the_scan_interval(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    def race(_: Work) -> None:
        with mutation("t"):
            pass
        fail()

    stage.runtime.on_head = race
    make_row(5, 4, 1, 0, failures=7)

    with fixed_jitter(1):
        deliver("t")

    assert numbers(frozen.at) == (6, 4, 1, 1_000)


def test_a_failed_pass_that_made_progress_comes_back_at_the_base(stage: Stage, frozen: FrozenClock) -> None:
    """It is no poison; its failures only feed alerts."""

    def progress(work: Work) -> None:
        with work.fenced(progress=True):
            pass
        fail()

    stage.runtime.on_head = progress
    make_row(5, 4, 1, 0, failures=7)

    deliver("t")

    assert numbers(frozen.at) == (5, 4, 1, 100)
    assert row_of().failures == 8


def test_a_failed_pass_wakes_no_later_than_its_timer(stage: Stage, frozen: FrozenClock) -> None:
    stage.runtime.on_head = fail
    make_row(5, 4, 1, 0, failures=7, timer_at=frozen.at + 3_000 * MS)

    with fixed_jitter(1):
        deliver("t")

    assert numbers(frozen.at) == (5, 4, 1, 3_000)


# --- Poison -------------------------------------------------------------------------------------


@committed
def test_k13_a_thread_that_kills_its_worker_each_time_is_quarantined_until_it_is_released(
    stage: Stage, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    """As the design has it: only release or force brings it back, never the mere passing of time."""
    make_row(5, 4, 1, 0)
    for _ in range(20):
        points.crash_at("maintenance:begin:after")
        with pytest.raises(Crash):
            deliver("t")
        frozen.at += LEASE

    assert deliver("t").outcome is Outcome.QUARANTINED
    row = row_of()
    assert row.quarantine_reason.startswith("worker lost: 20 starts")
    assert (row.processed, row.nonterminal, row.lease_token) == (4, 1, None)
    assert row.alarm_at is not None
    frozen.at += timedelta(days=1)
    assert sweep.sweep() == 0
    assert deliver("t").outcome is Outcome.PAUSED
    assert stage.calls == []

    operations.release("t", actor="ada", reason="the handler was repaired")
    assert [hint.eta for hint in sent] == [None]
    assert deliver("t").outcome is Outcome.RAN
    assert row_of().processed == 5


def test_k13_progress_takes_a_thread_that_is_often_evicted_out_of_the_suspicion(
    stage: Stage, frozen: FrozenClock
) -> None:
    def progress(work: Work) -> None:
        with work.fenced(progress=True):
            pass
        raise Crash

    stage.runtime.on_head = progress
    make_row(5, 4, 1, 0)

    for _ in range(25):
        with pytest.raises(Crash):
            deliver("t")
        frozen.at += LEASE

    assert row_of().starts_since_finish == 0


def test_o7_each_quarantine_is_counted_once_and_a_release_begins_the_suspicion_again(
    stage: Stage, frozen: FrozenClock, points: Failpoints, sent: list[Hint], settings: Settings
) -> None:
    settings.MAINTENANCE = {**settings.MAINTENANCE, "QUARANTINE_STARTS": 3}
    before = metrics.quarantined._value.get()
    make_row(5, 4, 1, 0)

    for times in (1, 2):
        for _ in range(3):
            points.crash_at("maintenance:begin:after")
            with pytest.raises(Crash):
                deliver("t")
            frozen.at += LEASE
        assert [deliver("t").outcome for _ in range(3)] == [Outcome.QUARANTINED, Outcome.PAUSED, Outcome.PAUSED]
        assert metrics.quarantined._value.get() == before + times
        operations.release("t", actor="ada", reason="have another try")

    assert deliver("t").outcome is Outcome.RAN
    assert row_of().processed == 5
