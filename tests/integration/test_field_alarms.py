"""Failures that others reported: one alarm for each thread, leases, clocks. Each test is named by its report.

Only what shows without worker processes (those are under `tests/process`). K3 and K7 are with the sweep, K11 with the
operators.
"""

from __future__ import annotations

import subprocess
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from maintenance import alarm, clock, owner, reaper, sweep
from maintenance.delivery import Outcome
from maintenance.ensure import ensure_alarm
from maintenance.gate import mutation
from maintenance.models import MutationLease, PassRun, ThreadMaintenance
from maintenance.ports import Work
from maintenance.testing import deliver, run_due_passes
from tests.arrivals import LEASE, arrive, lease_of_another, stored
from tests.concurrency import PATIENCE, elsewhere, running, someone_waits_for_a_lock, wait_until
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from collections.abc import Callable

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database

SECOND = timedelta(seconds=1)


def touch() -> None:
    with mutation("t"):
        pass


# --- F: concurrent inserts and clocks -----------------------------------------------------------


def test_f3_twenty_first_touches_at_once_make_one_row_and_one_message(sent: list[Hint]) -> None:
    """A new row is bootstrapped at generation 1, and each touch carries one of its own."""
    with running(*[touch] * 20):
        pass

    assert ThreadMaintenance.objects.count() == 1
    assert row_of().dirty == 21
    assert len(sent) == 1


@pytest.fixture(params=[timedelta(minutes=10), timedelta(minutes=-10)], ids=["fast", "slow"])
def _wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's own clock is wrong by ten minutes."""
    right = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: right() + request.param)


@pytest.mark.postgres
@pytest.mark.usefixtures("_wrong_clock")
def test_f13_a_worker_with_a_wrong_clock_steals_no_lease_and_is_never_early_or_late(
    stage: Stage, sent: list[Hint]
) -> None:
    """Times are set and compared by the database. SQLite has no other clock than its process's."""
    make_row(4, 3, 0, 0, **lease_of_another(left=20 * SECOND))
    make_row(4, 3, 0, 5_000, thread_id="ahead")
    make_row(4, 3, 0, -1, thread_id="due")

    assert deliver("t").outcome is Outcome.BUSY
    assert deliver("ahead").outcome is Outcome.EARLY
    assert deliver("due").outcome is Outcome.RAN
    assert sweep.sweep() == 1, "the one that is near"


@pytest.mark.postgres
@pytest.mark.usefixtures("_wrong_clock")
def test_f13_a_worker_with_a_wrong_clock_takes_a_lease_of_the_right_length(stage: Stage, sent: list[Hint]) -> None:
    left: list[timedelta] = []

    def look(_: Work) -> None:
        expires = row_of().lease_expires_at
        assert expires is not None
        left.append(expires - clock.now())

    stage.runtime.on_head = look
    make_row(4, 3, 0, 0)

    deliver("t")

    assert LEASE - SECOND < left[0] <= LEASE


# --- K: one alarm -------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", [touch, lambda: ensure_alarm("t")], ids=["touch", "ensure"])
@pytest.mark.parametrize("really_there", [False, True])
def test_k1_arming_again_an_overdue_slot_whose_message_is_gone_sends_one(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], arm: Callable[[], None], really_there: bool
) -> None:
    make_row(4, 3, 0, -10_000, 7, hint_seq=7, hint_at=frozen.at - 10 * SECOND, hint_attempts=1)

    arm()

    assert [(hint.seq, hint.eta) for hint in sent] == [(7, None)]
    outcomes = [arrive(7).outcome for _ in range(1 + really_there)]
    assert outcomes == [Outcome.RAN, Outcome.CLEARED][: 1 + really_there]


def test_k2_arming_in_start_up_code_two_hundred_times_makes_one_deadline_and_one_pass(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    due_at = frozen.at + 30 * SECOND
    for _ in range(200):
        alarm.ensure_scheduled_by("t", due_at)
        ensure_alarm("t")
        frozen.at += 100 * MS

    assert ThreadMaintenance.objects.count() == 1
    assert row_of().alarm_at == due_at
    assert len(sent) == 1

    frozen.at = due_at
    run_due_passes()
    assert PassRun.objects.count() == 1
    assert numbers(due_at) == (3, 3, 0, None)


def test_k8_input_before_the_claim_is_covered_by_the_pass_that_was_queued(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 0)
    touch()

    deliver("t")

    assert numbers(frozen.at) == (5, 5, 0, None)


def test_k8_input_during_the_pass_is_left_to_one_that_is_armed_at_once(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    stage.runtime.on_head = lambda _: touch()
    make_row(4, 3, 0, 0)

    deliver("t")

    assert numbers(frozen.at) == (5, 4, 0, 0)
    assert [hint.eta for hint in sent] == [None]


@pytest.mark.postgres
def test_k8_input_between_the_last_read_and_the_commit_waits_for_the_commit(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    """SQLite has one writer, so the gap does not exist there."""
    scanned, touched = Event(), Event()

    def late_input() -> None:
        assert scanned.wait(PATIENCE)
        touch()
        touched.set()

    def hold_the_gap_open() -> None:
        scanned.set()
        # Asked on another connection: in one transaction PostgreSQL answers such a question once.
        wait_until(lambda: elsewhere(someone_waits_for_a_lock), "the input waits for the row")
        assert not touched.is_set()

    stage.ledger.on_scan = hold_the_gap_open
    make_row(4, 3, 0, 0)
    with running(late_input):
        deliver("t")

    assert numbers(frozen.at) == (5, 4, 0, 0)


def test_k10_a_stream_of_input_does_not_keep_passes_from_committing(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    """Twenty touches a second, passes of one second; scaled to ten seconds of stream."""
    acknowledged: list[tuple[int, int]] = []

    def work_for_a_second(work: Work) -> None:
        for _ in range(20):
            frozen.at += 50 * MS
            touch()

    stage.runtime.on_head = work_for_a_second
    touch()
    for _ in range(10):
        began_with = row_of().dirty
        deliver("t")
        acknowledged.append((began_with, row_of().processed))
    assert all(began_with == processed for began_with, processed in acknowledged)

    stage.runtime.on_head = None
    assert len(run_due_passes()) == 1, "after the stream has stopped"
    assert (row_of().dirty, row_of().processed) == (202, 202)
    assert (ThreadMaintenance.objects.count(), MutationLease.objects.count()) == (1, 0)


# --- L: recovery --------------------------------------------------------------------------------


def lease_of_a_dead_process() -> dict[str, object]:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    return {**lease_of_another(), "lease_owner": f"{owner.machine()}:{gone.pid}:1"}


def test_l1_of_two_recoveries_with_the_same_list_the_slower_does_nothing(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 0)
    ThreadMaintenance.objects.update(**lease_of_a_dead_process())
    (seen,) = reaper._leases_of_this_machine()
    assert reaper.reap() == 1
    claimed: list[tuple[bool, bool]] = []

    def the_slower_goes_on(_: Work) -> None:
        before = stored()
        claimed.append((reaper.release_of_the_dead(seen), stored() == before))

    stage.runtime.on_head = the_slower_goes_on
    assert arrive(sent[-1].seq).outcome is Outcome.RAN

    assert claimed == [(False, True)]
    assert numbers(frozen.at) == (4, 4, 0, None)


def test_l2_a_pass_that_ended_after_it_was_seen_as_dead_stays_ended(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    seen: list[reaper.Observed] = []
    stage.runtime.on_head = lambda _: seen.extend(reaper._leases_of_this_machine())
    make_row(4, 3, 0, 0)
    deliver("t")
    before = stored()

    assert len(seen) == 1
    assert reaper.release_of_the_dead(seen[0]) is False
    assert stored() == before
    assert row_of().starts_since_finish == 0
