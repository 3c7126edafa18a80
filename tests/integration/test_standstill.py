"""`maintenance pause --all` and `resume --all`: a stop for everything, and its end (field report O9)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError
from django.db import transaction

from maintenance import operations, standstill, sweep, tasks
from maintenance.delivery import Outcome
from maintenance.errors import DurableAlarmError, OperationDenied, ThreadParked
from maintenance.models import OperatorAction, ThreadMaintenance
from maintenance.ports import Residue, Work
from maintenance.testing import deliver
from tests.arrivals import arrive
from tests.commands import maintenance
from tests.concurrency import running, wait_until
from tests.factories import live_lease, make_row, row_of, stored
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database


def stop() -> int:
    return standstill.pause(actor="ann", reason="the bill")


def stop_meanwhile(_: Work) -> None:
    stop()


def go_on() -> int:
    return standstill.resume(actor="ann", reason="paid")


def paused() -> list[str]:
    rows = ThreadMaintenance.objects.filter(paused_at__isnull=False).order_by("pk")
    return list(rows.values_list("thread_id", flat=True))


@pytest.fixture
def some(frozen: FrozenClock) -> None:
    """Threads in every state; three of them may still be given a pass."""
    make_row(4, 3, slot_ms=0, thread_id="due", hint_seq=1, hint_at=frozen.at, hint_attempts=1)
    make_row(4, 3, slot_ms=-9, thread_id="running", **live_lease())
    make_row(4, 4, slot_ms=60_000, thread_id="waiting")
    make_row(4, 4, thread_id="quiet")
    make_row(4, 3, slot_ms=0, thread_id="poison", quarantined_at=frozen.at)
    make_row(4, 3, slot_ms=0, thread_id="held")
    operations.pause("held", actor="bob", reason="a look")


def test_o9_a_stop_pauses_every_armed_thread_and_keeps_who_and_why_for_each(some: None, frozen: FrozenClock) -> None:
    left_alone = {thread_id: stored(thread_id) for thread_id in ("quiet", "poison", "held")}

    assert stop() == 3

    assert paused() == ["due", "held", "running", "waiting"]
    assert {thread_id: stored(thread_id) for thread_id in left_alone} == left_alone
    noted = OperatorAction.objects.filter(actor="ann").order_by("thread_id")
    assert [(one.thread_id, one.action, one.reason) for one in noted] == [
        (thread_id, "pause", "the bill") for thread_id in ("due", "running", "waiting")
    ]
    assert (noted[0].before["paused_at"], noted[0].after["paused_at"]) == (None, frozen.at.isoformat())


def test_o9_within_one_sweep_of_a_stop_nothing_begins(some: None, stage: Stage, sent: list[Hint]) -> None:
    stop()

    assert (sweep.sweep(), sent) == (0, [])
    assert arrive(1, thread_id="due").outcome is Outcome.PAUSED
    assert deliver("due").outcome is Outcome.PAUSED


def test_o9_a_running_pass_ends_and_nothing_follows_it_in_place(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    stage.runtime.settled = 1
    stage.ledger.residue = Residue(nonterminal=1, autonomous=True, claimable_head=True)
    stage.runtime.on_head = stop_meanwhile
    make_row(4, 3, 1, 0)

    assert tasks.run_pass("t", 1) == "ran"

    assert (stage.calls.count("head"), sent) == (1, [])
    assert row_of().paused_at == frozen.at


def test_o9_the_end_of_a_stop_lets_go_on_exactly_what_it_held_back(some: None, sent: list[Hint]) -> None:
    stop()
    operations.pause("waiting", actor="bob", reason="this one is the culprit")

    assert go_on() == 2

    assert paused() == ["held", "waiting"]
    assert sweep.sweep() == 1
    assert [hint.thread_id for hint in sent] == ["due"]
    assert go_on() == 0


def test_a_thread_that_parked_itself_during_a_stop_stays_parked(stage: Stage, frozen: FrozenClock) -> None:
    def stop_and_park(_: Work) -> None:
        stop()
        raise ThreadParked("the key is revoked")

    stage.runtime.on_head = stop_and_park
    make_row(4, 3, 1, 0)
    deliver("t")

    assert go_on() == 0
    assert paused() == ["t"]


def test_what_was_let_go_on_can_be_stopped_again(some: None) -> None:
    assert [stop(), go_on(), stop(), stop(), go_on()] == [3, 3, 3, 0, 3]


def test_threads_are_taken_in_batches_the_earliest_due_first(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "BATCH", 2)
    for number in range(5):
        make_row(4, 3, slot_ms=-number, thread_id=f"t{number}")

    assert stop() == 5

    noted = list(OperatorAction.objects.order_by("id").values_list("thread_id", flat=True))
    assert noted == ["t4", "t3", "t2", "t1", "t0"]
    assert go_on() == 5


@pytest.mark.postgres
def test_a_row_that_another_transaction_holds_is_paused_when_that_lets_go(frozen: FrozenClock) -> None:
    """A stop does not wait for one row while others are left."""
    for thread_id in ("locked", "free"):
        make_row(4, 3, slot_ms=0, thread_id=thread_id)
    is_locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            ThreadMaintenance.objects.select_for_update(no_key=True).get(pk="locked")
            is_locked.set()
            release.wait(10)

    def pause_and_tell() -> None:
        assert stop() == 2

    with running(hold):
        assert is_locked.wait(10)
        with running(pause_and_tell):
            wait_until(lambda: paused() == ["free"], "the free thread was paused")
            release.set()

    assert paused() == ["free", "locked"]


def test_a_stop_that_cannot_reach_every_row_says_so(frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(standstill, "_pause_batch", lambda *_: 0)
    make_row(4, 3, slot_ms=0)

    with pytest.raises(DurableAlarmError, match=r"0 threads were paused; .* run it again"):
        stop()
    assert len(waits) == standstill.TRIES


@pytest.mark.parametrize("act", [standstill.pause, standstill.resume])
def test_a_stop_and_its_end_have_an_author_and_a_reason(act: Any) -> None:
    with pytest.raises(OperationDenied):
        act(actor="ann", reason=" ")


def test_the_commands_tell_how_many(some: None) -> None:
    stopped = maintenance("pause", "--all", "--reason", "the bill", "--actor", "ann", as_json=True)
    resumed = maintenance("resume", "--all", "--reason", "paid")

    assert (stopped.code, stopped.json["changed"]) == (0, 3)
    assert resumed.out == "3 threads resumed.\n"


@pytest.mark.parametrize("words", [("pause",), ("pause", "t", "--all"), ("resume",), ("release", "--all"), ("wake",)])
def test_either_threads_are_named_or_all_are_meant(words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        maintenance(*words, "--reason", "a drill")
