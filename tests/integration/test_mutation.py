"""The atomic mutation (alarm-host, 5 and 15.10; scenarios C; the design, 3.4).

The scenarios count from a slot at T+50: that is `wake=False`. By default the next pass is due at once.
"""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from maintenance import clock, dispatch, reaper, renewal, sweeper
from maintenance.clock import DatabaseClock
from maintenance.delivery import Outcome
from maintenance.errors import BEGIN_PASS, MutationRefused, PassInterrupted
from maintenance.gate import mutation
from maintenance.lease import Lease, fenced
from maintenance.models import ThreadMaintenance
from maintenance.sweep import sweep
from maintenance.testing import deliver
from tests.concurrency import PATIENCE, elsewhere, running, someone_waits_for_a_lock, wait_until
from tests.factories import MS, live_lease, make_row, numbers, row_of, stored
from tests.marks import maintenance_database
from tests.stubs import Broken, be_interrupted, fail

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.passes import Result
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]


def test_c01_the_generation_and_the_slot_are_there_while_the_body_runs(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3)
    with mutation("t"):
        assert numbers(frozen.at) == (4, 3, 0, 0)
        assert sent == []
    assert [hint.seq for hint in sent] == [2]


def test_c01_without_a_wake_the_slot_is_the_least_delay_away(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3)
    with mutation("t", wake=False) as begun:
        assert (begun.generation, begun.now) == (4, frozen.at)
        assert numbers(frozen.at) == (4, 3, 0, 50)
    assert [(hint.seq, hint.eta) for hint in sent] == [(2, frozen.at + 50 * MS)]


@pytest.mark.parametrize(
    ("before", "wake", "after", "seq"),
    [
        pytest.param(20, False, 20, 7, id="c02-an-earlier-slot-is-kept"),
        pytest.param(5000, False, 50, 8, id="c03-a-later-slot-is-pulled"),
        pytest.param(-30, False, -30, 7, id="c04-a-slot-in-the-past-is-kept"),
        pytest.param(20, True, 0, 8, id="a-wake-pulls-it-to-now"),
        pytest.param(-30, True, -30, 7, id="a-wake-keeps-a-slot-in-the-past"),
    ],
)
def test_c02_to_c04_the_slot_ends_at_the_earlier_deadline_and_only_a_change_grows_the_sequence(
    frozen: FrozenClock, before: float, wake: bool, after: float, seq: int
) -> None:
    make_row(3, 2, 0, before, seq=7)
    with mutation("t", wake=wake):
        pass
    assert numbers(frozen.at) == (4, 2, 0, after)
    assert row_of().alarm_seq == seq


@pytest.mark.parametrize(("base", "slot"), [(1, 1), (3, 2), (100, 50)])
def test_c05_the_least_delay_is_half_the_base_rounded_up(
    frozen: FrozenClock, settings: Settings, base: int, slot: float
) -> None:
    settings.MAINTENANCE = {"ALARM_BACKOFF_BASE_MS": base}
    make_row(3, 3)
    with mutation("t", wake=False):
        pass
    assert numbers(frozen.at) == (4, 3, 0, slot)


def test_c08_an_interrupted_body_leaves_nothing_and_stays_interrupted(sent: list[Hint]) -> None:
    make_row(3, 3)
    before = stored()
    with pytest.raises(PassInterrupted), mutation("t"):
        be_interrupted()
    assert (stored(), sent) == (before, [])


def test_c09_mutations_at_the_same_time_each_carry_a_generation_of_their_own() -> None:
    generations: list[int] = []

    def mutate() -> None:
        for _ in range(5):
            with mutation("t") as begun:
                generations.append(begun.generation)

    with running(mutate, mutate):
        pass
    assert sorted(generations) == list(range(2, 12))
    assert row_of().dirty == 11


def test_c19_a_body_that_raises_leaves_no_generation_no_slot_and_no_message(
    sent: list[Hint], points: Failpoints
) -> None:
    make_row(3, 3)
    before = stored()
    with pytest.raises(Broken), mutation("t"):
        fail()
    assert (stored(), sent) == (before, [])
    assert points.seen == ["maintenance:dirty:before", "maintenance:dirty:after", "maintenance:mutation:armed"]


def test_c19_a_first_body_that_raises_leaves_no_row(sent: list[Hint]) -> None:
    with pytest.raises(Broken), mutation("t"):
        fail()
    assert (ThreadMaintenance.objects.count(), sent) == (0, [])


def test_c20_an_outer_transaction_that_rolls_back_takes_the_mutation_and_its_message(sent: list[Hint]) -> None:
    def mutate_and_fail() -> None:
        with transaction.atomic():
            with mutation("t"):
                pass
            fail()

    make_row(3, 3)
    before = stored()
    with pytest.raises(Broken):
        mutate_and_fail()
    assert (stored(), sent) == (before, [])


def test_c20_the_message_waits_for_the_outer_commit(sent: list[Hint]) -> None:
    make_row(3, 3)
    with transaction.atomic():
        with mutation("t"):
            pass
        assert sent == []
    assert [hint.seq for hint in sent] == [2]


def test_c21_a_mutation_in_a_savepoint_that_is_rolled_back_leaves_nothing(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    with transaction.atomic():
        with pytest.raises(Broken), mutation("t"):
            fail()
        assert numbers(frozen.at) == (3, 3, 0, None)
        with mutation("t"):
            pass
    assert numbers(frozen.at) == (4, 3, 0, 0)
    assert [hint.seq for hint in sent] == [2]


def test_c22_two_mutations_of_one_thread_in_one_transaction_send_one_message(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    with transaction.atomic():
        for _ in range(2):
            with mutation("t"):
                pass
    assert numbers(frozen.at) == (5, 3, 0, 0)
    assert [hint.seq for hint in sent] == [2]


def test_one_transaction_changes_one_thread(sent: list[Hint]) -> None:
    def mutate_both() -> None:
        with transaction.atomic():
            with mutation("first"):
                pass
            with mutation("second"):
                pytest.fail("the body must not run")

    make_row(3, 3, thread_id="first")
    make_row(3, 3, thread_id="second")
    with pytest.raises(MutationRefused):
        mutate_both()
    assert (row_of("first").dirty, row_of("second").dirty, sent) == (3, 3, [])


def test_a_thread_whose_mutation_was_rolled_back_gives_the_transaction_to_another(sent: list[Hint]) -> None:
    make_row(3, 3, thread_id="first")
    make_row(3, 3, thread_id="second")
    with transaction.atomic():
        with pytest.raises(Broken), mutation("first"):
            fail()
        with mutation("second"):
            pass
    assert (row_of("first").dirty, row_of("second").dirty) == (3, 4)
    assert [hint.thread_id for hint in sent] == ["second"]


def test_one_transaction_after_another_may_change_another_thread() -> None:
    for thread_id in ("first", "second"):
        with mutation(thread_id):
            pass
    assert (row_of("first").dirty, row_of("second").dirty) == (2, 2)


def test_a_local_sink_is_drained_once_after_the_commit_and_before_the_hint(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.sink.inert, stage.sink.inline = False, True
    in_transaction: list[bool] = []
    stage.sink.on_drain = lambda: in_transaction.append(connection.in_atomic_block)
    monkeypatch.setattr(dispatch, "send", lambda _: stage.calls.append("hint"))
    with mutation("t"):
        stage.calls.append("body")
    assert stage.calls == ["body", "invalidate", "drain", "hint"]
    assert in_transaction == [False]


@pytest.mark.postgres
def test_c24_a_connection_waits_two_seconds_for_a_row_at_most() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("2s",)


@pytest.mark.postgres
def test_c24_a_pass_that_cannot_get_the_row_in_time_fails_unbegun_and_the_sweep_brings_it_back(
    frozen: FrozenClock, sent: list[Hint], stage: Stage
) -> None:
    """Scaled: the wait is 50 ms."""

    def deliver_with_little_patience() -> Result:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        return deliver("t")

    make_row(5, 4, 0, -10, hint_seq=1, hint_at=frozen.at, hint_attempts=1)
    before = stored()
    with mutation("t"):
        result = elsewhere(deliver_with_little_patience)
        assert elsewhere(stored) == before
    assert (result.outcome, stage.calls) == (Outcome.FAILED, [])
    assert result.error.startswith(BEGIN_PASS)
    frozen.at += 5_000 * MS
    assert (sweep(), [hint.seq for hint in sent]) == (1, [1])
    assert deliver("t").outcome is Outcome.RAN
    assert numbers(frozen.at) == (6, 6, 0, None)


def held(row: ThreadMaintenance) -> Lease:
    assert row.lease_token is not None
    return Lease(row.thread_id, row.lease_token, row.lease_epoch)


def write_a_cursor(row: ThreadMaintenance) -> None:
    with fenced(held(row)):
        pass


def release_of_the_dead(row: ThreadMaintenance) -> None:
    assert row.lease_token is not None
    assert reaper.release_of_the_dead(reaper.Observed(row.thread_id, row.lease_token, row.lease_owner))


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda row: renewal.renew(held(row)), id="renewal"),
        pytest.param(write_a_cursor, id="cursor"),
        pytest.param(release_of_the_dead, id="release"),
        pytest.param(lambda _: sweeper.beat("a worker"), id="heartbeat"),
    ],
)
def test_c31_a_write_that_is_no_source_write_announces_no_generation(
    write: Callable[[ThreadMaintenance], Any],
) -> None:
    write(make_row(5, 4, 0, 0, **live_lease()))
    assert row_of().dirty == 5


def test_c31_a_pass_and_its_hints_announce_no_generation(sent: list[Hint]) -> None:
    make_row(5, 4, 0, 0)
    assert sweep() == 1
    deliver("t")
    row = row_of()
    assert (row.dirty, row.lease_epoch, row.hint_attempts, len(sent)) == (5, 1, 1, 1)


@pytest.mark.postgres
def test_a_mutation_that_waited_for_the_row_reads_the_time_after_its_wait() -> None:
    """A slot from before the wait could lie before a finish that has already looked."""
    holds, release, times = Event(), Event(), []

    def hold() -> None:
        with mutation("t"):
            holds.set()
            assert release.wait(PATIENCE)

    def mutate() -> None:
        assert holds.wait(PATIENCE)
        with mutation("t") as begun:
            times.append(begun.now)

    with clock.installed(DatabaseClock()), running(hold, mutate):
        wait_until(someone_waits_for_a_lock, "the second mutation waits for the first")
        released_at = clock.now()
        release.set()
    assert times[0] > released_at
