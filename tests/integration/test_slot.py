"""The slot and its six operations (alarm-host, 4; scenarios A; the design, 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance import alarm, dispatch
from maintenance.delivery import Outcome
from maintenance.errors import DELETE_ALARM, SET_ALARM, DurableAlarmError, UnsupportedSchema
from maintenance.models import ThreadMaintenance
from maintenance.testing import deliver
from tests.factories import MS, live_lease, make_row, numbers, row_of, stored
from tests.marks import maintenance_database
from tests.stubs import be_interrupted, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Body, Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]


def slot(frozen: FrozenClock) -> float | None:
    """The stored slot, in ms after T."""
    return numbers(frozen.at)[3]


def test_a01_a_thread_without_a_row_has_no_slot_and_gets_no_row_by_asking() -> None:
    assert alarm.scheduled("t") is None
    assert not ThreadMaintenance.objects.exists()


def test_a01_an_empty_slot_reads_as_none_and_a_filled_one_as_its_deadline(frozen: FrozenClock) -> None:
    make_row(3, 3, thread_id="empty")
    make_row(3, 3, slot_ms=70, thread_id="filled")
    assert alarm.scheduled("empty") is None
    assert alarm.scheduled("filled") == frozen.at + 70 * MS


def test_a04_ensure_keeps_the_earlier_deadline_and_only_a_change_grows_the_sequence(frozen: FrozenClock) -> None:
    make_row(3, 3, slot_ms=500, seq=7)
    answers = [alarm.ensure_scheduled_by("t", frozen.at + ms * MS) for ms in (700, 500, 300)]
    assert answers == [frozen.at + ms * MS for ms in (500, 500, 300)]
    assert (slot(frozen), row_of().alarm_seq) == (300, 8)


def test_a05_ensure_keeps_a_slot_in_the_past(frozen: FrozenClock) -> None:
    make_row(3, 3, slot_ms=-10, seq=7)
    alarm.ensure_scheduled_by("t", frozen.at + 1 * MS)
    assert (slot(frozen), row_of().alarm_seq) == (-10, 7)


@pytest.mark.parametrize(("before", "after"), [(None, 0), (500, 0), (-10, -10)])
def test_a06_a_wake_pulls_the_slot_to_now(frozen: FrozenClock, before: float | None, after: float) -> None:
    make_row(3, 3, slot_ms=before)
    assert alarm.schedule_now("t")
    assert slot(frozen) == after


def test_a06_a_wake_of_an_unknown_thread_makes_no_row() -> None:
    assert not alarm.schedule_now("t")
    assert not ThreadMaintenance.objects.exists()


def test_a07_a_wake_is_deferred_while_a_live_lease_holds_the_thread(sent: list[Hint]) -> None:
    make_row(4, 3, slot_ms=500, **live_lease())
    before = stored()
    assert not alarm.schedule_now("t")
    assert (stored(), sent) == (before, [])


def test_a07_an_expired_lease_defers_nothing(frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=500, **live_lease(0))
    assert alarm.schedule_now("t")
    assert slot(frozen) == 0


def test_a08_a_deferred_wake_is_not_replayed_after_the_pass(stage: Stage, sent: list[Hint]) -> None:
    woken: list[bool] = []
    stage.runtime.on_head = lambda _: woken.append(alarm.schedule_now("t"))
    make_row(5, 4, slot_ms=0)
    deliver("t")
    assert woken == [False]
    assert (alarm.scheduled("t"), sent) == (None, [])


@pytest.mark.parametrize(("ending", "outcome"), [(fail, Outcome.FAILED), (be_interrupted, Outcome.INTERRUPTED)])
def test_a09_a_pass_that_did_not_end_well_defers_no_longer(
    frozen: FrozenClock, stage: Stage, ending: Body, outcome: Outcome
) -> None:
    stage.runtime.on_head = ending
    make_row(5, 4, slot_ms=0)
    assert deliver("t").outcome is outcome
    assert slot(frozen) != 0
    assert alarm.schedule_now("t")
    assert slot(frozen) == 0


def test_a10_cancel_empties_the_slot_of_a_caught_up_thread(frozen: FrozenClock) -> None:
    make_row(3, 3, slot_ms=9, seq=7)
    assert alarm.cancel("t")
    assert (slot(frozen), row_of().alarm_seq) == (None, 8)
    assert not alarm.cancel("t"), "an empty slot cannot be emptied again"


def test_a10_cancel_is_refused_while_the_thread_is_dirty() -> None:
    make_row(4, 3, slot_ms=9)
    before = stored()
    with pytest.raises(DurableAlarmError) as refused:
        alarm.cancel("t")
    assert refused.value.operation == DELETE_ALARM
    assert stored() == before


def test_a10_cancel_is_refused_while_a_durable_timer_stands(frozen: FrozenClock) -> None:
    make_row(3, 3, slot_ms=9, timer_at=frozen.at + 90_000 * MS)
    before = stored()
    with pytest.raises(DurableAlarmError):
        alarm.cancel("t")
    assert stored() == before


def test_a10_cancel_is_refused_while_a_port_has_a_deadline(frozen: FrozenClock, stage: Stage) -> None:
    stage.messages.inert, stage.messages.deadline = False, frozen.at + 90_000 * MS
    make_row(3, 3, slot_ms=9)
    before = stored()
    with pytest.raises(DurableAlarmError):
        alarm.cancel("t")
    assert stored() == before


def test_a13_a_wake_whose_hint_the_broker_refuses_succeeds_with_one_warning(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "send", fail)
    make_row(3, 3)
    assert alarm.schedule_now("t")
    assert (slot(frozen), row_of().hint_seq) == (0, None)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


@pytest.mark.parametrize("ms", [100, 900])
def test_schedule_at_replaces_the_slot_of_a_caught_up_thread_earlier_or_later(frozen: FrozenClock, ms: float) -> None:
    make_row(3, 3, slot_ms=500, seq=7)
    assert alarm.schedule_at("t", frozen.at + ms * MS) == frozen.at + ms * MS
    assert (slot(frozen), row_of().alarm_seq) == (ms, 8)


def test_schedule_at_never_goes_later_than_the_slot_of_a_dirty_thread(frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=500, seq=7)
    assert alarm.schedule_at("t", frozen.at + 900 * MS) == frozen.at + 500 * MS
    assert (slot(frozen), row_of().alarm_seq) == (500, 7)


def test_schedule_at_never_goes_later_than_a_durable_timer(frozen: FrozenClock) -> None:
    make_row(3, 3, slot_ms=500, timer_at=frozen.at + 600 * MS)
    alarm.schedule_at("t", frozen.at + 900 * MS)
    assert slot(frozen) == 600


def test_schedule_at_never_goes_later_than_a_ports_deadline(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.deadline = False, frozen.at + 700 * MS
    make_row(3, 3, slot_ms=500)
    alarm.schedule_at("t", frozen.at + 900 * MS)
    assert slot(frozen) == 700


def test_a_moved_slot_is_handed_over_with_its_new_sequence_and_an_eta(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3, slot_ms=500, seq=7, hint_seq=7)
    alarm.ensure_scheduled_by("t", frozen.at + 300 * MS)
    assert [(hint.seq, hint.eta) for hint in sent] == [(8, frozen.at + 300 * MS)]


def test_a_kept_slot_is_not_handed_over_again(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3, slot_ms=500, seq=7, hint_seq=7, hint_at=frozen.at)
    alarm.ensure_scheduled_by("t", frozen.at + 700 * MS)
    assert sent == []


def test_a_due_slot_is_handed_over_without_an_eta(sent: list[Hint]) -> None:
    make_row(3, 3)
    alarm.schedule_now("t")
    assert [hint.eta for hint in sent] == [None]


def test_a_deadline_beyond_the_horizon_stays_in_the_database(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3)
    alarm.schedule_at("t", frozen.at + 60_001 * MS)
    assert (slot(frozen), sent) == (60_001, [])


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        (SET_ALARM, lambda at: alarm.schedule_at("t", at)),
        (SET_ALARM, lambda at: alarm.ensure_scheduled_by("t", at)),
        (SET_ALARM, lambda _: alarm.schedule_now("t")),
        (DELETE_ALARM, lambda _: alarm.cancel("t")),
    ],
    ids=["schedule_at", "ensure_scheduled_by", "schedule_now", "cancel"],
)
def test_a_row_of_another_schema_fails_every_operation_by_its_label(
    frozen: FrozenClock, operation: str, call: Callable[[object], object]
) -> None:
    make_row(3, 3, slot_ms=500, schema_version=2)
    before = stored()
    with pytest.raises(UnsupportedSchema) as refused:
        call(frozen.at)
    assert refused.value.operation == operation
    assert stored() == before
