"""What a delivery means and what it may change (alarm-host, 15.5; scenarios L, S-04, as the design's 3.5 amends them).

No watchdog message, a busy delivery is not republished, a superseded one does nothing: the sweep and the reaper do.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maintenance import alarm, sweep, tasks
from maintenance.delivery import Outcome
from maintenance.gate import mutation
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.ports import RecoveryReport, Residue, Work
from tests.arrivals import arrive, lease_of_another, stored
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database

rolled_back = pytest.mark.django_db
"""For cases that nothing after a commit can change."""

# --- The normal path ----------------------------------------------------------------------------


def test_l01_one_message_one_lease_and_a_clear_finish_without_another_message(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    start = frozen.at
    held: list[tuple[int, int, float]] = []

    def look(_: Work) -> None:
        row = row_of()
        assert row.alarm_at is not None
        held.append((row.lease_epoch, row.alarm_seq, (row.alarm_at - start) / MS))

    stage.runtime.on_head = look
    with mutation("t", wake=False):
        assert sent == []
    assert numbers(start) == (2, 0, 0, 50)
    assert [(hint.seq, hint.eta) for hint in sent] == [(1, start + 50 * MS)]

    frozen.at = start + 52 * MS
    assert arrive(1).outcome is Outcome.RAN

    assert held == [(1, 2, 102)]
    assert numbers(start) == (2, 2, 0, None)
    assert row_of().alarm_seq == 3
    assert len(sent) == 1
    assert arrive(2).outcome is Outcome.CLEARED


def test_l02_the_double_of_a_message_whose_pass_runs_is_superseded(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    doubles: list[tuple[Outcome, bool]] = []

    def double(_: Work) -> None:
        before = stored()
        doubles.append((arrive(1).outcome, stored() == before))

    stage.runtime.on_head = double
    make_row(4, 3, 0, 0)

    assert arrive(1).outcome is Outcome.RAN

    assert doubles == [(Outcome.SUPERSEDED, True)]
    assert stage.calls.count("head") == 1
    assert sent == []


# --- Early and late -----------------------------------------------------------------------------


def test_l04_an_early_message_goes_back_with_the_rest_of_its_countdown(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 2_000)
    before = stored()

    assert arrive(1).outcome is Outcome.EARLY

    assert [(hint.seq, hint.eta, hint.countdown, hint.hops) for hint in sent] == [(1, None, 2_000 * MS, 1)]
    assert stored() == before
    assert stage.calls == []


def test_an_early_message_waits_at_least_the_floor(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, 30)

    arrive(1)

    assert [hint.countdown for hint in sent] == [50 * MS]


@rolled_back
@pytest.mark.parametrize(("early_ms", "outcome"), [(21, Outcome.EARLY), (20, Outcome.RAN), (15, Outcome.RAN)])
def test_l05_a_message_within_the_tolerance_runs(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], early_ms: int, outcome: Outcome
) -> None:
    make_row(4, 3, 0, early_ms)

    assert arrive(1).outcome is outcome


@rolled_back
def test_l06_a_message_an_hour_late_runs_if_its_slot_still_stands(stage: Stage, frozen: FrozenClock) -> None:
    make_row(4, 3, 0, -3_600_000)

    assert arrive(1).outcome is Outcome.RAN
    assert numbers(frozen.at) == (4, 4, 0, None)


def test_j2_a_broker_that_ignores_countdowns_does_not_spin(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    """Every message is handed back at once; after a bounded number of hops the sweep takes over."""
    make_row(4, 3, 0, 30_000)
    arrive(1)
    delivered = 0
    while sent:
        arrive(sent[0].seq, hops=sent.pop(0).hops)
        delivered += 1

    assert delivered == 3
    assert stage.calls == []
    assert row_of().alarm_at == frozen.at + 30_000 * MS


def test_j2_a_message_far_ahead_of_its_deadline_is_dropped_for_the_sweep(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 600_000)

    assert arrive(1).outcome is Outcome.EARLY

    assert sent == []
    assert numbers(frozen.at) == (4, 3, 0, 600_000)


# --- The slot has moved -------------------------------------------------------------------------


def test_l07_a_mutation_that_pulls_the_slot_makes_the_older_message_stale(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3, 0, 5_000, 7)
    with mutation("t", wake=False):
        pass
    assert [(hint.seq, hint.eta) for hint in sent] == [(8, frozen.at + 50 * MS)]
    frozen.at += 50 * MS

    assert arrive(8).outcome is Outcome.RAN
    alarm.ensure_scheduled_by("t", frozen.at)
    assert arrive(7).outcome is Outcome.SUPERSEDED


def test_l08_a_finish_that_moves_the_slot_sends_the_message_for_where_it_is_now(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    start = frozen.at
    stage.runtime.reports = [RecoveryReport(submission_id="s", decision="RepairReadiness", disposition="repaired")]
    stage.runtime.on_head = lambda _: setattr(frozen, "at", start + 10 * MS)
    stage.ledger.residue = Residue(nonterminal=1, autonomous=True)
    make_row(4, 3, 1, 0)

    arrive(1)

    assert numbers(start) == (4, 3, 1, 110)
    assert [(hint.seq, hint.eta) for hint in sent] == [(3, start + 110 * MS)]


@rolled_back
@pytest.mark.parametrize("seq", [0, 1, 7, None])
def test_l09_a_thread_without_a_slot_is_cleared_for_any_sequence(
    stage: Stage, frozen: FrozenClock, seq: int | None
) -> None:
    make_row(4, 4, 0, None, 1)

    assert arrive(seq).outcome is Outcome.CLEARED
    assert stage.calls == []


def test_l12_a_message_from_another_timeline_does_nothing_and_the_sweep_hands_the_slot_over(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    """After a failover a message may carry a sequence that the row has not reached; it hands nothing off itself."""
    make_row(4, 3, 0, -10_000, 12, hint_seq=12, hint_at=frozen.at - timedelta(seconds=10), hint_attempts=1)
    before = stored()

    assert arrive(50).outcome is Outcome.SUPERSEDED
    assert stored() == before
    assert sent == []

    assert sweep.sweep() == 1
    assert [hint.seq for hint in sent] == [12]


def test_l16_a_mutation_that_keeps_an_earlier_slot_sends_nothing(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 2, 0, 20, 7, hint_seq=7, hint_at=frozen.at, hint_attempts=1)

    with mutation("t", wake=False):
        pass

    assert numbers(frozen.at) == (4, 2, 0, 20)
    assert sent == []


# --- Who is unknown, what is malformed ----------------------------------------------------------


@rolled_back
def test_l10_an_unknown_thread_gets_no_row(stage: Stage) -> None:
    assert arrive(1).outcome is Outcome.UNKNOWN_THREAD
    assert not ThreadMaintenance.objects.exists()


@rolled_back
def test_l10_a_known_thread_without_a_row_gets_one_and_its_pass(stage: Stage, frozen: FrozenClock) -> None:
    stage.ledger.known = frozenset({"t"})

    assert arrive(None).outcome is Outcome.RAN
    assert numbers(frozen.at) == (1, 1, 0, None)


MALFORMED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("t",), {}),
    (("t", "1"), {}),
    (("t", 1.0), {}),
    (("t", True), {}),
    (("t", -1), {}),
    (("t", 2**63), {}),
    (("t", None), {}),
    ((7, 1), {}),
    (("", 1), {}),
    (("x" * 256, 1), {}),
    (("a\x00b", 1), {}),
    (("half a character: \ud83d", 1), {}),
    ((["t"], 1), {}),
    (("t", 1), {"v": 2}),
    (("t", 1), {"v": None}),
    (("t", 1), {"v": [1]}),
    (("t", 1), {"hops": "x"}),
    (("t", 1), {"trigger": 3}),
    (("t", 1, "a third argument"), {}),
]


@rolled_back
@pytest.mark.parametrize(("args", "kwargs"), MALFORMED)
def test_l11_a_malformed_message_is_dropped_without_an_error(
    stage: Stage, frozen: FrozenClock, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    make_row(4, 3, 0, 0)
    before = stored()

    assert tasks.run_pass(*args, **kwargs) == Outcome.MALFORMED

    assert stored() == before
    assert stage.calls == []


@rolled_back
def test_j6_keywords_of_a_newer_release_are_ignored(stage: Stage, frozen: FrozenClock) -> None:
    make_row(4, 3, 0, 0)

    assert tasks.run_pass("t", 1, v=1, trigger="alarm", trace={"id": "x"}, shard=7) == Outcome.RAN


@rolled_back
def test_l13_a_generation_that_a_message_names_is_never_written(stage: Stage, frozen: FrozenClock) -> None:
    make_row(5, 3, 0, 0)

    assert tasks.run_pass("t", 1, generation=9) == Outcome.RAN

    assert numbers(frozen.at) == (5, 5, 0, None)


# --- What a delivery that does not run leaves behind --------------------------------------------


def superseded() -> None:
    make_row(4, 3, 1, 0, 9)


def early() -> None:
    make_row(4, 3, 1, 5_000)


def busy() -> None:
    make_row(4, 3, 1, 0, **lease_of_another())


def paused() -> None:
    made = make_row(4, 3, 1, 0)
    ThreadMaintenance.objects.update(paused_at=made.alarm_at)


def quarantined() -> None:
    made = make_row(4, 3, 1, 0)
    ThreadMaintenance.objects.update(quarantined_at=made.alarm_at, quarantine_reason="worker lost")


def cleared() -> None:
    make_row(4, 4, 1)


@rolled_back
@pytest.mark.parametrize(
    ("scene", "seq", "outcome"),
    [
        (superseded, 8, Outcome.SUPERSEDED),
        (superseded, 10, Outcome.SUPERSEDED),
        (early, 1, Outcome.EARLY),
        (busy, 1, Outcome.BUSY),
        (paused, 1, Outcome.PAUSED),
        (quarantined, 1, Outcome.PAUSED),
        (cleared, 1, Outcome.CLEARED),
    ],
)
def test_l14_a_delivery_that_does_not_run_changes_no_column(
    stage: Stage, frozen: FrozenClock, scene: Callable[[], None], seq: int, outcome: Outcome
) -> None:
    scene()
    before = stored()
    frozen.at += MS

    for _ in range(2):
        assert arrive(seq).outcome is outcome

    assert stored() == before
    assert stage.calls == []
    assert not PassRun.objects.exists()


def test_a_busy_delivery_is_not_sent_again(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    busy()

    assert arrive(1).outcome is Outcome.BUSY
    assert sent == []


# --- Far deadlines ------------------------------------------------------------------------------


def test_l21_a_deadline_two_hours_away_is_handed_over_when_it_is_near_and_runs_once(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 4)
    due_at = frozen.at + timedelta(hours=2)
    alarm.ensure_scheduled_by("t", due_at)
    assert sent == []

    frozen.at = due_at - timedelta(seconds=61)
    assert sweep.sweep() == 0
    frozen.at = due_at - timedelta(seconds=60)
    assert sweep.sweep() == 1
    assert sweep.sweep() == 0
    assert [(hint.seq, hint.eta) for hint in sent] == [(2, due_at)]

    frozen.at = due_at
    assert arrive(2).outcome is Outcome.RAN
    assert arrive(2).outcome is Outcome.CLEARED
    assert PassRun.objects.count() == 1
