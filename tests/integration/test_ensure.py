"""The stored state, its bootstrap, and ensuring that what is owed is armed (alarm-host, 2 and 7; scenarios B)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import IntegrityError

from maintenance import alarm, dispatch, ensure
from maintenance.delivery import Delivery, Outcome
from maintenance.ensure import ensure_alarm
from maintenance.errors import (
    ADVANCE_GENERATION,
    BEGIN_PASS,
    ENSURE_ALARM,
    ENSURE_PUBLICATION_ALARM,
    FINISH_PASS,
    DurableAlarmError,
    PassInterrupted,
    UnsupportedSchema,
)
from maintenance.gate import mutation, prearmed_mutation
from maintenance.history import Report
from maintenance.models import MutationLease, ThreadMaintenance
from maintenance.passes import deliver as deliver_message
from maintenance.sweep import sweep
from maintenance.testing import deliver
from tests.factories import MS, make_row, numbers, row_of, stored
from tests.marks import maintenance_database
from tests.statements import counted_statements
from tests.stubs import be_interrupted, fail

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]

FAR_MS = 90_000
"""A slot later than any that ensure sets: the database refuses a dirty row without one."""

MAX_BIGINT = 2**63 - 1

STATE_TABLE = ThreadMaintenance._meta.db_table


def test_b01_reading_makes_no_row_and_a_new_row_starts_as_dirty_1_processed_0_nonterminal_0() -> None:
    assert alarm.scheduled("t") is None
    assert not ThreadMaintenance.objects.exists()
    fresh = ThreadMaintenance(thread_id="t")
    assert (fresh.dirty, fresh.processed, fresh.nonterminal) == (1, 0, 0)


def test_b02_the_first_mutation_makes_the_row_at_generation_2(frozen: FrozenClock) -> None:
    with mutation("t", wake=False) as begun:
        assert begun.generation == 2
    assert numbers(frozen.at) == (2, 0, 0, 50)


def test_b03_ensure_makes_the_row_armed_one_scan_interval_away(frozen: FrozenClock) -> None:
    ensure_alarm("t")
    assert numbers(frozen.at) == (1, 0, 0, 1000)


def test_b04_a_pass_makes_the_row_of_a_thread_that_has_none(frozen: FrozenClock, stage: Stage) -> None:
    seen: list[tuple[object, ...]] = []
    stage.ledger.known = frozenset({"t"})
    stage.runtime.on_recovery = lambda work: seen.append((work.generation, numbers(frozen.at)))
    assert deliver_message(Delivery(thread_id="t")).outcome is Outcome.RAN
    assert seen == [(1, (1, 0, 0, 50))]


def test_b05_a_settled_thread_older_than_its_row_gets_one_useful_pass(frozen: FrozenClock) -> None:
    ensure_alarm("t")
    frozen.at += 1000 * MS
    result = deliver("t")
    assert result.report == Report(phase="actionable", recovered=0, settled=0, nonterminal=0, alarm="cleared")
    assert numbers(frozen.at) == (1, 1, 0, None)


def test_b06_ensure_again_changes_nothing(frozen: FrozenClock, sent: list[Hint]) -> None:
    ensure_alarm("t")
    once, hints = stored(), list(sent)
    frozen.at += 400 * MS
    ensure_alarm("t")
    assert (stored(), sent) == (once, hints)


def test_b07_ensure_writes_nothing_to_a_caught_up_thread_without_a_deadline() -> None:
    make_row(4, 4, 1)
    before = stored()
    with counted_statements() as statements:
        ensure_alarm("t")
    assert stored() == before
    assert statements.writes() == []


@pytest.mark.parametrize(("deadline", "slot"), [(300, 300), (-999, 50), (5000, 1000)])
def test_b10_a_dirty_thread_is_armed_at_its_scan_or_a_sinks_earlier_deadline(
    frozen: FrozenClock, stage: Stage, deadline: float, slot: float
) -> None:
    stage.sink.inert, stage.sink.deadline = False, frozen.at + deadline * MS
    make_row(5, 4, 1, FAR_MS)
    ensure_alarm("t")
    assert numbers(frozen.at) == (5, 4, 1, slot)


def test_b11_the_earliest_of_all_ports_deadlines_counts(frozen: FrozenClock, stage: Stage) -> None:
    stage.messages.inert, stage.messages.deadline = False, frozen.at + 80 * MS
    stage.sink.inert, stage.sink.deadline = False, frozen.at + 300 * MS
    stage.projection.inert, stage.projection.deadline = False, frozen.at + 90 * MS
    make_row(4, 4, 1)
    ensure_alarm("t")
    assert numbers(frozen.at) == (4, 4, 1, 80)


def test_a_durable_timer_counts_as_a_deadline(frozen: FrozenClock) -> None:
    make_row(4, 4, 1, timer_at=frozen.at + 70 * MS)
    ensure_alarm("t")
    assert numbers(frozen.at) == (4, 4, 1, 70)


def test_b13_a_sink_that_cannot_say_its_deadline_fails_ensure_after_the_thread_was_armed(
    frozen: FrozenClock, stage: Stage, points: Failpoints
) -> None:
    stage.sink.inert, stage.sink.on_deadline = False, fail
    make_row(5, 4, 1, FAR_MS)
    with pytest.raises(DurableAlarmError) as failed:
        ensure_alarm("t")
    assert failed.value.operation == ENSURE_PUBLICATION_ALARM
    assert "secret" not in str(failed.value)
    assert numbers(frozen.at) == (5, 4, 1, 1000)
    assert "maintenance:ensure:after" not in points.seen


def test_a_projection_that_cannot_say_its_deadline_counts_as_due(frozen: FrozenClock, stage: Stage) -> None:
    stage.projection.inert, stage.projection.on_deadline = False, fail
    make_row(4, 4, 1)
    ensure_alarm("t")
    assert numbers(frozen.at) == (4, 4, 1, 50)


@pytest.mark.parametrize("interruption", [PassInterrupted("the worker drains"), SoftTimeLimitExceeded()])
def test_b14_an_interrupted_projection_deadline_interrupts_ensure(stage: Stage, interruption: BaseException) -> None:
    def interrupt() -> None:
        raise interruption

    stage.projection.inert, stage.projection.on_deadline = False, interrupt
    make_row(4, 4, 1)
    before = stored()
    with pytest.raises(type(interruption)):
        ensure_alarm("t")
    assert stored() == before


def test_b15_a_row_of_another_schema_fails_a_mutation_before_its_body() -> None:
    make_row(4, 3, 1, 20, schema_version=2)
    before = stored()
    with pytest.raises(UnsupportedSchema) as refused, mutation("t"):
        pytest.fail("the body must not run")
    assert refused.value.operation == ADVANCE_GENERATION
    assert stored() == before


def test_b15_a_row_of_another_schema_fails_a_prearmed_mutation_before_its_body() -> None:
    make_row(4, 3, 1, 20, schema_version=2)
    before = stored()
    with pytest.raises(UnsupportedSchema) as refused, prearmed_mutation("t", "call"):
        pytest.fail("the body must not run")
    assert refused.value.operation == ADVANCE_GENERATION
    assert (stored(), MutationLease.objects.count()) == (before, 0)


def test_b15_a_row_of_another_schema_fails_ensure() -> None:
    make_row(4, 3, 1, 20, schema_version=2)
    before = stored()
    with pytest.raises(UnsupportedSchema) as refused:
        ensure_alarm("t")
    assert refused.value.operation == ENSURE_ALARM
    assert stored() == before


def test_b15_a_row_of_another_schema_fails_begin(stage: Stage) -> None:
    make_row(4, 3, 1, -5, schema_version=2)
    before = stored()
    result = deliver("t")
    assert (result.outcome, result.failed) == (Outcome.FAILED, True)
    assert result.error.startswith(BEGIN_PASS)
    assert (stored(), stage.calls) == (before, [])


def test_b15_a_row_that_changed_its_schema_during_the_pass_fails_finish(stage: Stage) -> None:
    during: list[dict[str, object]] = []

    def upgrade(*_: object) -> None:
        ThreadMaintenance.objects.update(schema_version=2)
        during.append(stored())

    stage.runtime.on_head = upgrade
    make_row(4, 3, 1, 0)
    result = deliver("t")
    assert result.failed
    assert result.error.startswith(FINISH_PASS)
    assert during == [stored()]


@pytest.mark.parametrize(
    ("dirty", "processed", "slot"), [(2, 1, None), (1, 2, 50), (-1, -1, None), (1, -1, 50)], ids=str
)
def test_b16_the_database_refuses_numbers_that_break_an_invariant(
    dirty: int, processed: int, slot: float | None
) -> None:
    with pytest.raises(IntegrityError):
        make_row(dirty, processed, 0, slot)


def test_b16_the_database_refuses_to_disarm_a_dirty_thread() -> None:
    make_row(2, 1, 0, 50)
    with pytest.raises(IntegrityError):
        ThreadMaintenance.objects.update(alarm_at=None)


def test_b17_a_generation_that_cannot_grow_fails_typed_and_never_wraps() -> None:
    make_row(MAX_BIGINT, 3, 1, 20)
    before = stored()
    with pytest.raises(DurableAlarmError) as failed, mutation("t"):
        pytest.fail("the body must not run")
    assert failed.value.operation == ADVANCE_GENERATION
    assert stored() == before


def test_b18_ensuring_every_old_thread_twice_and_sweeping_hands_each_over_once(
    sent: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled: 60 threads and sweeps of 25; the broker takes nothing until the sweeps."""
    threads = [f"old-{number}" for number in range(60)]
    with monkeypatch.context() as broker_down:
        broker_down.setattr(dispatch, "send", fail)
        for thread_id in threads * 2:
            ensure_alarm(thread_id)
    dispatch.close_breaker()
    assert [sweep(limit=25) for _ in range(4)] == [25, 25, 10, 0]
    assert Counter(hint.thread_id for hint in sent) == dict.fromkeys(threads, 1)
    rows = ThreadMaintenance.objects.values_list("thread_id", "dirty", "processed")
    assert sorted(rows) == sorted((thread_id, 1, 0) for thread_id in threads)


def test_b19_ensure_reads_neither_ledger_nor_log_and_calls_no_other_thread(stage: Stage) -> None:
    make_row(5, 4, 1, FAR_MS)
    with counted_statements() as statements:
        ensure_alarm("t")
    assert stage.calls == []
    assert statements.beyond(STATE_TABLE) == []


def test_b20_the_audit_arms_a_thread_whose_port_has_a_deadline_and_no_slot(
    frozen: FrozenClock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.messages.inert, stage.messages.deadline = False, frozen.at - 5 * MS
    monkeypatch.setattr(stage.messages, "pending_threads", lambda limit: ["t"][:limit])
    make_row(4, 4, 1)
    assert ensure.audit() == 1
    assert numbers(frozen.at) == (4, 4, 1, 50)
    assert ensure.audit() == 0, "the thread has its slot"


def test_the_audit_arms_a_thread_whose_timer_has_no_slot(frozen: FrozenClock) -> None:
    make_row(4, 4, 1, timer_at=frozen.at + 70 * MS)
    assert ensure.audit() == 1
    assert numbers(frozen.at) == (4, 4, 1, 70)


def test_the_audit_goes_on_after_a_thread_that_it_could_not_arm(frozen: FrozenClock) -> None:
    make_row(4, 4, timer_at=frozen.at + 70 * MS, thread_id="broken", schema_version=2)
    make_row(4, 4, timer_at=frozen.at + 70 * MS, thread_id="whole")
    assert ensure.audit() == 1
    assert row_of("broken").alarm_at is None
    assert row_of("whole").alarm_at == frozen.at + 70 * MS


def test_the_audit_is_interrupted_with_its_worker(
    frozen: FrozenClock, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.messages.inert, stage.messages.on_deadline = False, be_interrupted
    make_row(4, 4, timer_at=frozen.at + 70 * MS)
    with pytest.raises(PassInterrupted):
        ensure.audit()


def test_ensure_hands_the_slot_over_once(frozen: FrozenClock, sent: list[Hint]) -> None:
    ensure_alarm("t")
    ensure_alarm("t")
    assert [(hint.seq, hint.eta) for hint in sent] == [(1, frozen.at + 1000 * MS)]
