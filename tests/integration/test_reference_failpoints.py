"""What is durable after a death at each of the ten failpoints of the reference (alarm-host, 12; J-01 to J-10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from maintenance import gate
from maintenance.delivery import Outcome
from maintenance.ensure import ensure_alarm
from maintenance.gate import prearmed_mutation
from maintenance.models import MutationLease, ThreadMaintenance
from maintenance.testing import Crash, Failpoints, deliver
from tests.arrivals import LEASE, stored
from tests.factories import MS, make_row, numbers, row_of
from tests.jobs import Jobs, table_of_jobs
from tests.marks import maintenance_database
from tests.rest import come_to_rest

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database


@pytest.fixture
def jobs(transactional_db: None) -> Iterator[Jobs]:
    with table_of_jobs() as made:
        yield made


def killed_in(points: Failpoints, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Arms a death after which not even a `finally` of the mutator runs."""

    def die(_: str) -> None:
        monkeypatch.setattr(gate, "_end", lambda *_: None)
        raise Crash

    points.arm(name, die)


def test_j01_dying_before_the_generation_leaves_nothing_and_a_retry_accepts_once(
    jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    points.crash_at("maintenance:dirty:before")
    with pytest.raises(Crash):
        jobs.submit(1)
    assert not ThreadMaintenance.objects.exists()
    assert jobs.settled() == {}

    jobs.submit(1)
    jobs.submit(1)
    come_to_rest(frozen)
    assert jobs.settled() == {1: 1}


def test_j01_dying_before_the_generation_of_a_prearmed_mutation_runs_no_body(
    frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    make_row(3, 3)
    before = stored()
    points.crash_at("maintenance:dirty:before")
    entered: list[int] = []

    with pytest.raises(Crash), prearmed_mutation("t", "call a bank"):
        entered.append(1)

    assert stored() == before
    assert not MutationLease.objects.exists()
    assert entered == []


@pytest.mark.parametrize("name", ["maintenance:dirty:after", "maintenance:mutation:armed"])
def test_j02_j03_a_mutator_killed_before_its_body_holds_the_thread_until_its_lease_expires(
    name: str,
    jobs: Jobs,
    frozen: FrozenClock,
    points: Failpoints,
    sent: list[Hint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_row(3, 3)
    start = frozen.at
    killed_in(points, monkeypatch, name)
    entered: list[int] = []
    with pytest.raises(Crash), prearmed_mutation("t", "call a bank"):
        entered.append(1)
    assert entered == []
    assert numbers(start) == (4, 3, 0, 50)
    assert MutationLease.objects.count() == 1

    frozen.at = start + 59_000 * MS
    deliver("t")
    assert numbers(frozen.at) == (4, 3, 0, 1_000)

    come_to_rest(frozen)
    assert (frozen.at - start) / MS == 60_000
    assert numbers(frozen.at) == (4, 4, 0, None)
    assert jobs.settled() == {}


@pytest.mark.parametrize(
    "name", ["maintenance:dirty:after", "maintenance:mutation:armed", "maintenance:mutation:finished"]
)
def test_j02_to_j04_an_atomic_mutation_that_dies_before_its_commit_is_rolled_back(
    name: str, jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    make_row(3, 3)
    before = stored()
    points.crash_at(name)

    with pytest.raises(Crash):
        jobs.submit(1)

    assert stored() == before
    assert jobs.settled() == {}
    assert sent == []


def test_j04_a_mutator_killed_after_its_body_leaves_the_body_and_a_dirty_thread(
    jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_the_outer(_: str) -> None:
        killed_in(points, monkeypatch, "maintenance:mutation:finished")

    # The inner mutation, the body's own commit, passes the same failpoint first.
    points.arm("maintenance:mutation:finished", kill_the_outer)
    with pytest.raises(Crash), prearmed_mutation("t", "submit"):
        jobs.submit(1)
    assert jobs.settled() == {1: 0}
    assert row_of().is_dirty

    come_to_rest(frozen)
    assert jobs.settled() == {1: 1}
    assert not row_of().is_dirty


def test_j05_dying_before_ensure_changes_nothing_and_the_next_start_ensures(
    frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    points.crash_at("maintenance:ensure:before")
    with pytest.raises(Crash):
        ensure_alarm("t")
    assert not ThreadMaintenance.objects.exists()

    ensure_alarm("t")
    assert numbers(frozen.at) == (1, 0, 0, 1_000)


def test_j06_dying_after_ensure_has_ensured(frozen: FrozenClock, points: Failpoints, sent: list[Hint]) -> None:
    points.crash_at("maintenance:ensure:after")
    with pytest.raises(Crash):
        ensure_alarm("t")
    before = stored()
    assert numbers(frozen.at) == (1, 0, 0, 1_000)

    frozen.at += 400 * MS
    ensure_alarm("t")
    assert stored() == before


def test_j08_dying_after_begin_leaves_a_lease_and_a_fallback_and_no_hook_was_called(
    jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    called: list[int] = []
    jobs.on_settle = lambda _, number: called.append(number)
    jobs.submit(1)
    points.crash_at("maintenance:begin:after")
    with pytest.raises(Crash):
        deliver("t")
    assert called == []
    assert numbers(frozen.at) == (2, 0, 0, 50)
    assert row_of().has_live_lease(frozen.at)
    assert deliver("t").outcome is Outcome.BUSY

    frozen.at += LEASE
    assert deliver("t").outcome is Outcome.RAN
    assert called == [1]
    assert row_of().processed == 2


def test_j09_dying_after_the_settlement_repeats_nothing(
    jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    jobs.submit(1)
    points.crash_at("maintenance:finish:before")
    with pytest.raises(Crash):
        deliver("t")
    assert jobs.settled() == {1: 1}
    assert numbers(frozen.at) == (2, 0, 0, 50)

    frozen.at += LEASE
    result = deliver("t")

    assert result.report is not None
    assert (result.report.recovered, result.report.settled, result.report.alarm) == (0, 0, "cleared")
    assert jobs.settled() == {1: 1}


def test_j10_dying_before_the_finish_of_a_caught_up_pass_decides_again(
    stage: Stage, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    stage.sink.inert = False
    stage.sink.deadline = frozen.at
    stage.sink.on_drain = lambda: setattr(stage.sink, "deadline", None)
    make_row(4, 4, 0, 0)
    points.crash_at("maintenance:finish:before")
    with pytest.raises(Crash):
        deliver("t")
    assert numbers(frozen.at) == (4, 4, 0, 50)

    frozen.at += LEASE
    assert deliver("t").outcome is Outcome.RAN
    assert numbers(frozen.at) == (4, 4, 0, None)
