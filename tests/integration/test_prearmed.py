"""The pre-armed mutation: armed and announced before its body (alarm-host, 5 and 15.10; scenarios C, "bracket")."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.core.handlers.base import BaseHandler
from django.db import OperationalError, connection, transaction
from django.http import HttpResponse
from prometheus_client import REGISTRY

from maintenance import alarm, rows
from maintenance.delivery import Outcome
from maintenance.errors import ADVANCE_GENERATION, END_MUTATION, DurableAlarmError, MutationRefused, PassInterrupted
from maintenance.gate import mutation, prearmed_mutation
from maintenance.models import MutationLease
from maintenance.snapshot import snapshot
from maintenance.testing import Crash, deliver
from tests.concurrency import PATIENCE, elsewhere, running, someone_waits_for_a_lock, wait_until
from tests.factories import MS, make_row, numbers, row_of, stored
from tests.marks import maintenance_database
from tests.stubs import Broken, be_interrupted, fail

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.test import RequestFactory

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]

TTL_MS = 60_000
MAX_BIGINT = 2**63 - 1


def mutations_in_flight() -> int:
    with snapshot("t") as seen:
        return seen.mutations_in_flight


def test_c01_generation_slot_and_message_are_committed_before_the_body(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3)
    with prearmed_mutation("t", "charge") as begun:
        assert (begun.generation, begun.now) == (4, frozen.at)
        assert not connection.in_atomic_block
        assert numbers(frozen.at) == (4, 3, 0, 50)
        assert [(hint.seq, hint.eta) for hint in sent] == [(2, frozen.at + 50 * MS)]
        lease = MutationLease.objects.get()
    assert (lease.thread_id, lease.label, lease.generation) == ("t", "charge", 4)
    assert lease.expires_at == frozen.at + TTL_MS * MS


def test_the_end_removes_the_lease_and_wakes_the_thread(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3)
    with prearmed_mutation("t", "charge"):
        sent.clear()
    assert numbers(frozen.at) == (4, 3, 0, 0)
    assert (mutations_in_flight(), row_of().mutating_until) == (0, None)
    assert [(hint.seq, hint.eta) for hint in sent] == [(3, None)]


@pytest.mark.parametrize(
    ("before", "during", "seq"),
    [
        pytest.param(20, 20, 7, id="c02-an-earlier-slot-is-kept"),
        pytest.param(5000, 50, 8, id="c03-a-later-slot-is-pulled"),
        pytest.param(-30, -30, 7, id="c04-a-slot-in-the-past-is-kept"),
    ],
)
def test_c02_to_c04_the_slot_during_the_body_is_the_earlier_deadline(
    frozen: FrozenClock, before: float, during: float, seq: int
) -> None:
    make_row(3, 2, 0, before, seq=7)
    with prearmed_mutation("t", "charge"):
        assert numbers(frozen.at) == (4, 2, 0, during)
        assert row_of().alarm_seq == seq


def test_c06_a_body_that_raises_leaves_its_generation_armed(frozen: FrozenClock, points: Failpoints) -> None:
    """The body may have done something before it failed. The end wakes the thread, as after a success."""
    make_row(3, 3)
    with pytest.raises(Broken), prearmed_mutation("t", "charge"):
        fail()
    assert numbers(frozen.at) == (4, 3, 0, 0)
    assert mutations_in_flight() == 0
    reached = [name for name in points.seen if name.startswith("maintenance:")]
    assert reached == ["maintenance:dirty:before", "maintenance:dirty:after", "maintenance:mutation:armed"]


def test_c06_a_body_that_succeeds_reaches_every_failpoint_in_order(points: Failpoints) -> None:
    with prearmed_mutation("t", "charge"):
        pass
    assert [name for name in points.seen if name.startswith("maintenance:")] == [
        "maintenance:dirty:before",
        "maintenance:dirty:after",
        "maintenance:mutation:armed",
        "maintenance:mutation:finished",
    ]


def test_c07_a_generation_that_cannot_grow_keeps_the_body_from_running() -> None:
    make_row(MAX_BIGINT, 3, 0, 20)
    before = stored()
    with pytest.raises(DurableAlarmError) as failed, prearmed_mutation("t", "charge"):
        pytest.fail("the body must not run")
    assert failed.value.operation == ADVANCE_GENERATION
    assert (stored(), mutations_in_flight()) == (before, 0)


def test_c07_a_lease_that_cannot_be_written_takes_the_generation_with_it(
    frozen: FrozenClock, sent: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = uuid4()
    monkeypatch.setattr("maintenance.gate.uuid.uuid4", lambda: taken)
    make_row(3, 3, thread_id="other")
    make_row(3, 3)
    with prearmed_mutation("other", "charge"):
        sent.clear()
        with pytest.raises(DurableAlarmError) as failed, prearmed_mutation("t", "charge"):
            pytest.fail("the body must not run")
    assert failed.value.operation == ADVANCE_GENERATION
    assert (numbers(frozen.at), mutations_in_flight()) == ((3, 3, 0, None), 0)
    assert {hint.thread_id for hint in sent} == {"other"}


def test_c08_an_interrupted_body_ends_its_lease_and_stays_interrupted() -> None:
    make_row(3, 3)
    with pytest.raises(PassInterrupted), prearmed_mutation("t", "charge"):
        be_interrupted()
    assert (row_of().dirty, mutations_in_flight()) == (4, 0)


def test_c09_pre_armed_mutations_at_the_same_time_each_carry_a_generation_of_their_own() -> None:
    generations: list[int] = []

    def mutate() -> None:
        for _ in range(5):
            with prearmed_mutation("t", "charge") as begun:
                generations.append(begun.generation)

    with running(mutate, mutate):
        pass
    assert sorted(generations) == list(range(2, 12))
    assert (row_of().dirty, mutations_in_flight()) == (11, 0)


@pytest.fixture
def without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database goes away while the body runs."""

    def lock(thread_id: str, operation: str, **options: Any) -> rows.Locked | None:
        if operation == END_MUTATION:
            raise OperationalError
        return locked(thread_id, operation, **options)

    locked = rows.lock
    monkeypatch.setattr(rows, "lock", lock)


@pytest.mark.usefixtures("without_end")
def test_an_end_that_fails_does_not_hide_why_the_body_failed(frozen: FrozenClock) -> None:
    make_row(3, 3)

    with pytest.raises(Broken) as raised, prearmed_mutation("t", "charge"):
        fail()

    (note,) = raised.value.__notes__
    assert note.startswith("The end of the pre-armed mutation failed too: end maintenance mutation: the database")
    assert numbers(frozen.at) == (4, 3, 0, 50)
    assert mutations_in_flight() == 1


@pytest.mark.usefixtures("without_end")
def test_an_end_that_fails_after_a_body_that_did_not_is_raised() -> None:
    with pytest.raises(DurableAlarmError, match=END_MUTATION), prearmed_mutation("t", "charge"):
        pass

    assert row_of().is_dirty
    assert mutations_in_flight() == 1


def test_c10_another_mutation_begins_and_ends_while_a_body_runs() -> None:
    in_body, may_end = Event(), Event()

    def charge() -> None:
        with prearmed_mutation("t", "charge"):
            in_body.set()
            assert may_end.wait(PATIENCE)

    with running(charge):
        assert in_body.wait(PATIENCE)
        with prearmed_mutation("t", "refund") as second:
            assert (second.generation, mutations_in_flight()) == (3, 2)
        assert mutations_in_flight() == 1
        may_end.set()
    assert mutations_in_flight() == 0


def test_c11_a_pass_beside_a_body_neither_prepares_nor_acknowledges(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.wants_generation = False, True
    make_row(3, 3)
    with prearmed_mutation("t", "charge"):
        frozen.at += 50 * MS
        assert elsewhere(lambda: deliver("t")).outcome is Outcome.RAN
        assert stage.sink.prepared == []
        assert (row_of().dirty, row_of().processed) == (4, 3)


@pytest.mark.postgres
def test_c12_a_mutation_begins_only_after_a_snapshot_has_ended() -> None:
    holds, release, ran = Event(), Event(), Event()

    def look() -> None:
        with snapshot("t"):
            holds.set()
            assert release.wait(PATIENCE)

    def mutate() -> None:
        assert holds.wait(PATIENCE)
        with prearmed_mutation("t", "charge"):
            ran.set()

    make_row(3, 3)
    with running(look, mutate):
        wait_until(someone_waits_for_a_lock, "the mutation waits for the snapshot")
        assert (row_of().dirty, ran.is_set()) == (3, False)
        release.set()
    assert ran.is_set()


@pytest.mark.postgres
def test_c12_a_mutation_ends_only_after_a_snapshot_has_ended() -> None:
    in_body, holds, release, counted = Event(), Event(), Event(), []

    def mutate() -> None:
        with prearmed_mutation("t", "charge"):
            in_body.set()
            assert holds.wait(PATIENCE)

    def look() -> None:
        assert in_body.wait(PATIENCE)
        with snapshot("t") as seen:
            holds.set()
            assert release.wait(PATIENCE)
            counted.extend([seen.mutations_in_flight, MutationLease.objects.count()])

    make_row(3, 3)
    with running(mutate, look):
        wait_until(someone_waits_for_a_lock, "the end of the mutation waits for the snapshot")
        release.set()
    assert counted == [1, 1]


def test_c23_inside_a_transaction_it_is_refused_before_its_body(sent: list[Hint]) -> None:
    make_row(3, 3)
    before = stored()
    with pytest.raises(MutationRefused), transaction.atomic(), prearmed_mutation("t", "charge"):
        pytest.fail("the body must not run")
    assert (stored(), MutationLease.objects.count(), sent) == (before, 0, [])


def test_c23_inside_a_view_under_atomic_requests_it_is_refused_before_its_body(
    monkeypatch: pytest.MonkeyPatch, rf: RequestFactory
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        with prearmed_mutation("t", "charge"):
            pytest.fail("the body must not run")

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    make_row(3, 3)
    before = stored()
    with pytest.raises(MutationRefused):
        BaseHandler().make_view_atomic(view)(rf.get("/"))
    assert stored() == before


def test_c26_a_body_that_outlived_its_lease_announces_another_generation_at_its_end(frozen: FrozenClock) -> None:
    """A pass may have acknowledged meanwhile: what the body did after that would stay unseen."""
    lost = REGISTRY.get_sample_value("wakeful_mutation_lease_lost_total") or 0
    make_row(3, 3)
    with prearmed_mutation("t", "charge"):
        frozen.at += (TTL_MS + 1) * MS
        deliver("t")
        assert numbers(frozen.at) == (4, 4, 0, None)
    assert numbers(frozen.at) == (5, 4, 0, 0)
    assert REGISTRY.get_sample_value("wakeful_mutation_lease_lost_total") == lost + 1


def test_a_lease_that_a_killed_mutator_left_counts_until_it_expires(frozen: FrozenClock, points: Failpoints) -> None:
    points.crash_at("maintenance:dirty:after")
    with pytest.raises(Crash), prearmed_mutation("t", "charge"):
        pytest.fail("the body must not run")
    frozen.at += (TTL_MS - 1) * MS
    assert mutations_in_flight() == 1
    frozen.at += 1 * MS
    assert mutations_in_flight() == 0


def test_c27_a_killed_mutator_costs_one_pass_a_scan_and_is_acknowledged_when_its_lease_has_expired(
    frozen: FrozenClock, points: Failpoints
) -> None:
    """In simulated time: each pass runs exactly when its slot is due."""
    points.crash_at("maintenance:dirty:after")
    with pytest.raises(Crash), prearmed_mutation("t", "charge"):
        pytest.fail("the body must not run")
    killed_at, passes = frozen.at, 0
    while (slot := alarm.scheduled("t")) is not None:
        frozen.at = max(frozen.at, slot)
        deliver("t")
        passes += 1
        assert passes <= 75, "the thread spins while its mutator's lease lives"
    assert passes >= 50
    assert numbers(frozen.at) == (2, 2, 0, None)
    assert TTL_MS * MS <= frozen.at - killed_at <= (TTL_MS + 1000) * MS


def test_a_commit_inside_the_body_wakes_at_once_and_is_not_acknowledged_before_the_end(frozen: FrozenClock) -> None:
    make_row(3, 3)
    with prearmed_mutation("t", "charge"):
        with mutation("t"):
            pass
        assert numbers(frozen.at) == (5, 3, 0, 0)
        deliver("t")
        assert row_of().processed == 3
    deliver("t")
    assert numbers(frozen.at) == (5, 5, 0, None)


def test_sinks_are_told_and_drained_after_the_body_while_its_lease_lives(stage: Stage) -> None:
    stage.sink.inert, stage.sink.inline = False, True
    in_flight: list[int] = []
    with prearmed_mutation("t", "charge"):
        stage.calls.clear()
        stage.sink.on_drain = lambda: in_flight.append(mutations_in_flight())
        stage.calls.append("body")
    assert stage.calls == ["body", "invalidate", "drain"]
    assert in_flight == [1]
