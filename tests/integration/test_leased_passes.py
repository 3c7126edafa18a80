"""What a lease hides, who finishes, who is forced, and who waits (scenarios L-30 to L-37).

There is no watchdog message: a dead pass is found by the sweep or by the reaper.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maintenance import operations, sweep
from maintenance.delivery import Outcome
from maintenance.gate import mutation
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.ports import Work
from maintenance.testing import Crash, deliver
from tests.arrivals import LEASE, arrive, lease_of_another, stored
from tests.factories import MS, make_row, numbers, row_of
from tests.jobs import table_of_jobs
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = maintenance_database

rolled_back = pytest.mark.django_db
"""For cases that nothing after a commit can change."""


# --- The lease during a pass --------------------------------------------------------------------


def test_l30_a_lease_that_expired_but_was_not_taken_over_still_finishes(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    stage.runtime.on_head = lambda _: setattr(frozen, "at", frozen.at + LEASE + MS)
    make_row(4, 3, 0, 0)

    assert arrive(1).outcome is Outcome.RAN
    assert numbers(frozen.at) == (4, 4, 0, None)
    assert row_of().lease_epoch == 1


def test_l31_a_pass_that_was_taken_over_writes_nothing_and_its_settlement_stays(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    """The first worker settles and is then so slow that another one takes the thread over."""
    left_by_the_second: list[dict[str, Any]] = []

    def take_over(work: Work) -> None:
        if work.epoch == 1:
            frozen.at += LEASE
            assert deliver("t").outcome is Outcome.RAN
            left_by_the_second.append(stored())

    with table_of_jobs(after_settling=take_over) as jobs:
        jobs.submit(1)

        assert arrive(1).outcome is Outcome.LEASE_LOST

        assert [stored()] == left_by_the_second
        assert (row_of().lease_epoch, row_of().is_dirty) == (2, False)
        assert jobs.settled() == {1: 1}
        assert [run.outcome for run in PassRun.objects.order_by("id")] == ["lease_lost", "ran"]


@rolled_back
@pytest.mark.parametrize(("jump", "meanwhile"), [(-60, Outcome.BUSY), (29, Outcome.BUSY), (60, Outcome.RAN)])
def test_l28_l29_a_clock_that_jumps_lets_no_two_passes_of_a_thread_commit(
    stage: Stage, frozen: FrozenClock, jump: int, meanwhile: Outcome
) -> None:
    """Forward it may look like an expiry: then the second pass counts and the first commits nothing."""
    seen: list[Outcome] = []

    def another_worker_looks(work: Work) -> None:
        if not seen:
            seen.append(Outcome.RAN)
            frozen.at += timedelta(seconds=jump)
            seen.append(deliver("t").outcome)

    stage.runtime.on_head = another_worker_looks
    make_row(4, 3, 0, 0)

    outcome = deliver("t").outcome

    assert seen[1] is meanwhile
    assert outcome is (Outcome.LEASE_LOST if meanwhile is Outcome.RAN else Outcome.RAN)
    assert (row_of().processed, row_of().lease_token) == (4, None)
    assert PassRun.objects.filter(outcome="ran").count() == 1


def test_l33_a_slot_that_a_lease_hides_is_not_swept_and_is_handed_over_by_the_finish(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    start = frozen.at

    def mutate_meanwhile(_: Work) -> None:
        with mutation("t"):
            pass
        frozen.at = start + 5 * MS
        assert sweep.sweep() == 0
        assert sent == []

    stage.runtime.on_head = mutate_meanwhile
    make_row(4, 3, 0, 0)

    arrive(1)

    assert numbers(start) == (5, 4, 0, 0)
    assert [(hint.seq, hint.eta) for hint in sent] == [(row_of().alarm_seq, None)]


def test_l34_a_mutation_during_a_pass_sends_nothing_and_the_finish_hands_over_what_is_due(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    start = frozen.at

    def mutate_meanwhile(_: Work) -> None:
        with mutation("t", wake=False):
            pass
        assert sent == []
        frozen.at = start + 80 * MS

    stage.runtime.on_head = mutate_meanwhile
    make_row(4, 3, 0, 0)

    arrive(1)

    assert numbers(start) == (5, 4, 0, 50)
    assert [hint.eta for hint in sent] == [None]


def test_the_sweep_finds_a_dead_pass_at_the_expiry_of_its_lease(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], points: Failpoints
) -> None:
    """There is no watchdog message: what it was for, the sweep does."""
    points.crash_at("maintenance:begin:after")
    make_row(4, 3, 0, 0)
    with pytest.raises(Crash):
        arrive(1)
    assert sent == []

    frozen.at += LEASE - MS
    assert sweep.sweep() == 0
    frozen.at += MS
    assert sweep.sweep() == 1

    assert arrive(sent[0].seq).outcome is Outcome.RAN
    assert numbers(frozen.at) == (4, 4, 0, None)
    assert [run.outcome for run in PassRun.objects.order_by("id")] == ["lease_lost", "ran"]


# --- Forced and paused --------------------------------------------------------------------------


@rolled_back
def test_l35_a_forced_pass_of_a_quiet_thread_runs_and_leaves_it_quiet(stage: Stage, frozen: FrozenClock) -> None:
    make_row(4, 4, 2, None)

    result = deliver("t", forced=True)

    assert result.outcome is Outcome.RAN
    assert result.report is not None
    assert (result.report.phase, result.report.nonterminal) == ("caught-up", 2)
    assert numbers(frozen.at) == (4, 4, 2, None)
    assert stage.calls == []


@rolled_back
def test_l36_a_forced_pass_never_breaks_a_live_lease(stage: Stage, frozen: FrozenClock) -> None:
    make_row(4, 3, 1, 0, **lease_of_another())
    before = stored()

    assert deliver("t", forced=True).outcome is Outcome.BUSY

    assert stored() == before
    assert stage.calls == []


@rolled_back
@pytest.mark.parametrize("hindrance", ["paused_at", "quarantined_at", "alarm_at"])
def test_a_forced_pass_overrides_pause_quarantine_and_deadline(
    stage: Stage, frozen: FrozenClock, hindrance: str
) -> None:
    make_row(4, 3, 1, 0)
    ThreadMaintenance.objects.update(**{hindrance: frozen.at + 5_000 * MS})

    assert deliver("t", forced=True).outcome is Outcome.RAN
    assert row_of().processed == 4


def test_l37_a_paused_thread_waits_untouched_and_is_handed_over_by_resume_at_once(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 1, 0, 3, hint_seq=3, hint_at=frozen.at, hint_attempts=9)
    operations.pause("t", actor="ada", reason="maintenance window")

    assert arrive(3).outcome is Outcome.PAUSED
    frozen.at += timedelta(hours=1)
    assert sweep.sweep() == 0
    assert numbers(frozen.at) == (4, 3, 1, -3_600_000)

    operations.resume("t", actor="ada", reason="window is over")
    assert [(hint.seq, hint.eta) for hint in sent] == [(3, None)]
    assert arrive(3).outcome is Outcome.RAN
