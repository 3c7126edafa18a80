"""A pass may park its thread: it ends, the thread is paused with a reason for a person, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance import operations, tasks
from maintenance.delivery import Outcome
from maintenance.errors import ThreadParked
from maintenance.gate import mutation
from maintenance.models import OperatorAction, PassRun, ThreadMaintenance
from maintenance.ports import Work
from maintenance.testing import deliver
from tests.arrivals import arrive, raise_it
from tests.commands import maintenance
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("sent")]

REASON = "the balance is exhausted"


def park(_: Work) -> None:
    raise ThreadParked(REASON)


@pytest.fixture
def parking(stage: Stage, frozen: FrozenClock) -> Stage:
    """A due thread whose head attempt parks it."""
    make_row(4, 3, 1, 0, failures=2)
    stage.runtime.on_head = park
    return stage


def resume() -> None:
    operations.resume("t", actor="ann", reason="paid")


@pytest.mark.parametrize("where", ["on_recovery", "on_head"])
def test_a_parked_thread_is_paused_as_by_an_operator_and_its_generation_stays(
    stage: Stage, frozen: FrozenClock, where: str
) -> None:
    make_row(4, 3, 1, 0)
    setattr(stage.runtime, where, park)

    assert arrive(1).outcome is Outcome.PARKED

    row, noted = row_of(), OperatorAction.objects.get()
    assert (row.paused_at, row.lease_token, row.quarantined_at) == (frozen.at, None, None)
    assert numbers(frozen.at) == (4, 3, 1, 0)
    assert (noted.action, noted.actor, noted.reason) == ("pause", "wakeful", REASON)
    assert (noted.before["paused_at"], noted.after["paused_at"]) == (None, frozen.at.isoformat())


def test_parking_is_no_failure(parking: Stage) -> None:
    assert tasks.run_pass("t", 1) == "parked"

    row, ran = row_of(), PassRun.objects.get()
    assert (row.failures, row.stalls, row.starts_since_finish) == (2, 0, 0)
    assert (ran.outcome, ran.error) == (row.last_outcome, row.last_error) == ("parked", REASON)


def test_a_parked_thread_is_left_alone_until_it_is_resumed(parking: Stage, sent: list[Hint]) -> None:
    deliver("t")
    parking.runtime.on_head = None
    assert deliver("t").outcome is Outcome.PAUSED
    assert sent == []


def test_a_resumed_thread_is_handed_over_at_once_and_its_pass_acknowledges(
    parking: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    deliver("t")
    parking.runtime.on_head = None

    resume()

    assert [hint.seq for hint in sent] == [row_of().alarm_seq]
    assert deliver("t").outcome is Outcome.RAN
    assert numbers(frozen.at) == (4, 4, 0, None)


def test_what_is_accepted_while_a_pass_parks_its_thread_is_kept(parking: Stage, frozen: FrozenClock) -> None:
    def accept_and_park(work: Work) -> None:
        with mutation("t"):
            pass
        park(work)

    parking.runtime.on_head = accept_and_park
    deliver("t")

    assert row_of().paused_at == frozen.at
    assert numbers(frozen.at)[:2] == (5, 3)


def test_a_pass_that_was_taken_over_parks_nothing(parking: Stage) -> None:
    def lose_and_park(work: Work) -> None:
        ThreadMaintenance.objects.update(lease_epoch=99)
        park(work)

    parking.runtime.on_head = lose_and_park

    assert deliver("t").outcome is Outcome.LEASE_LOST
    assert row_of().paused_at is None
    assert not OperatorAction.objects.exists()


def test_a_forced_pass_that_parks_again_says_so_and_the_pause_stays(parking: Stage, frozen: FrozenClock) -> None:
    deliver("t")
    paused_at = row_of().paused_at
    frozen.at += 1_000 * MS
    parking.runtime.on_head = lambda _: raise_it(ThreadParked("the key is revoked"))

    assert deliver("t", forced=True).outcome is Outcome.PARKED

    assert row_of().paused_at == paused_at
    assert list(OperatorAction.objects.order_by("id").values_list("reason", flat=True)) == [
        REASON,
        "the key is revoked",
    ]


def test_the_commands_say_why_and_what_to_do(parking: Stage) -> None:
    ran = maintenance("pass", "t")
    told = maintenance("status", "t")

    assert (ran.code, told.code) == (4, 0)
    assert f"it waits for a person: {REASON}. `maintenance resume` lets it go on." in ran.out
    assert f"Parked by its last pass ({REASON}): its work is kept and goes on after resume." in told.out


@pytest.mark.parametrize(
    ("given", "kept"), [("", "no reason was given"), ("half \ud800", "half ?"), ("x" * 9_000, "x" * 4_095 + "…")]
)
def test_a_reason_is_bounded_and_can_always_be_stored(stage: Stage, frozen: FrozenClock, given: str, kept: str) -> None:
    make_row(4, 3, 1, 0)
    stage.runtime.on_head = lambda _: raise_it(ThreadParked(given))

    deliver("t")

    assert OperatorAction.objects.get().reason == kept
