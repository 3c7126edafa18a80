"""The steps of an actionable pass, in order, and what each failing step leaves (alarm-host, 8 and 11; scenarios F).

What a pass writes under its own lease announces no generation, so a pass that settled its head is acknowledged. A
failed pass backs off where the reference leaves begin's fallback.
"""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from maintenance import wave as wave_module
from maintenance import work as work_module
from maintenance.delivery import Outcome
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.ports import Residue
from maintenance.testing import deliver, fixed_jitter, run_due_passes
from tests.concurrency import PATIENCE
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database
from tests.passes import WAITING, is_durable, run_pass, write_canonically
from tests.statements import counted_statements
from tests.stubs import be_interrupted, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from maintenance.clock import FrozenClock
    from maintenance.ports import Work
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent", "stage")]


def test_f14_a_pass_does_its_steps_in_order(frozen: FrozenClock, stage: Stage) -> None:
    """The wave runs beside the rest, so it is only known to lie between the preparation and the scan."""
    stage.sink.inert, stage.sink.wants_generation, stage.sink.gates_execution = False, True, True
    stage.sink.on_deadline = lambda: stage.calls.append("deadline")
    stage.projection.inert, stage.projection.deadline = False, frozen.at
    stage.messages.inert, stage.messages.deadline = False, frozen.at
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert stage.calls.index("prepare") < stage.calls.index("wave") < stage.calls.index("scan")
    assert [call for call in stage.calls if call != "wave"] == [
        "prepare",
        "backfill",
        "drain",
        "deadline",
        "recovery",
        "head",
        "drain",
        "scan",
        "deadline",
    ]


def test_f15_each_pass_attempts_one_head(stage: Stage) -> None:
    ready = [1, 2, 3]
    heads_by_pass: list[int] = []

    def settle(_: Work) -> None:
        ready.pop()
        stage.ledger.residue = Residue(nonterminal=len(ready), autonomous=bool(ready), claimable_head=bool(ready))
        heads_by_pass.append(stage.calls.count("head"))

    stage.runtime.settled, stage.runtime.on_head = 1, settle
    make_row(5, 4, 3, 0)
    results = run_due_passes()
    assert [result.report.nonterminal for result in results if result.report] == [2, 1, 0]
    assert heads_by_pass == [1, 2, 3]


def test_f16_the_head_is_asked_to_yield_ten_minutes_after_the_pass_began(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, asked = [1_000.0], []

    class Monotonic:
        @staticmethod
        def monotonic() -> float:
            return at[0]

    def watch(work: Work) -> None:
        for at[0] in (1_000.0, 1_599.9, 1_600.0):
            asked.append(work.should_yield())

    monkeypatch.setattr(work_module, "time", Monotonic)
    stage.runtime.on_head = watch
    make_row(5, 4, 1, 0)
    deliver("t")
    assert asked == [False, False, True]


def test_f19_every_sink_is_drained_before_and_after_canonical_work_even_without_a_deadline(
    frozen: FrozenClock, stage: Stage
) -> None:
    """The second time, so that the settlement of this pass does not cost another one."""
    stage.sink.inert = False
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert stage.calls == ["drain", "recovery", "head", "drain", "scan"]


@pytest.mark.postgres
def test_f20_a_slow_wave_keeps_no_attempt_waiting_and_finish_waits_for_it(frozen: FrozenClock, stage: Stage) -> None:
    attempted = Event()

    def be_slow(_: Work) -> None:
        assert attempted.wait(PATIENCE)
        stage.calls.append("wave ended")

    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, be_slow
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage, during=lambda _: attempted.set())
    assert stage.calls[-2:] == ["wave ended", "scan"]


def test_f21_finish_sees_the_deadline_that_the_wave_left(frozen: FrozenClock, stage: Stage) -> None:
    start = frozen.at

    def deliver_messages(_: Work) -> None:
        stage.messages.deadline = start + 300 * MS

    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, start, deliver_messages
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert numbers(start) == (5, 5, 0, 300)


def test_f22_a_failing_backfill_lets_canonical_work_have_its_turn_and_then_fails_the_pass(
    frozen: FrozenClock, stage: Stage
) -> None:
    """The head settled: the failed pass made progress and comes back after one base."""

    def settle(work: Work) -> None:
        with work.fenced(progress=True):
            write_canonically("settled")

    stage.projection.inert, stage.projection.deadline, stage.projection.on_drain = False, frozen.at, fail
    stage.runtime.settled, stage.runtime.on_head = 1, settle
    make_row(5, 4, 1, 0)
    result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("the projection backfill failed")
    assert is_durable("settled")
    assert numbers(frozen.at) == (5, 4, 1, 100)


def test_f23_an_interrupted_backfill_ends_the_pass_at_once_without_backoff(frozen: FrozenClock, stage: Stage) -> None:
    stage.projection.inert, stage.projection.deadline = False, frozen.at
    stage.projection.on_drain = be_interrupted
    make_row(5, 4, 1, 0)
    result = deliver("t")
    assert (result.outcome, result.failed) == (Outcome.INTERRUPTED, False)
    assert stage.calls == ["backfill"]
    assert (numbers(frozen.at), row_of().failures) == ((5, 4, 1, 50), 0)


def test_f24_a_failing_sink_keeps_canonical_work_from_running(frozen: FrozenClock, stage: Stage) -> None:
    stage.sink.inert, stage.sink.on_drain = False, fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("a publication sink failed")
    assert stage.calls == ["drain"]
    assert (numbers(frozen.at), row_of().failures) == ((5, 4, 1, 500), 1)


@pytest.mark.postgres
@pytest.mark.parametrize("ending", [fail, be_interrupted], ids=["f24-failed", "f23-interrupted"])
def test_f23_f24_the_wave_of_a_pass_that_ends_early_is_stopped_before_the_thread_is_let_go(
    frozen: FrozenClock, stage: Stage, ending: Callable[[], None]
) -> None:
    never, waving = Event(), Event()
    let_go: list[bool] = []

    def wave(work: Work) -> None:
        waving.set()
        try:
            while not never.wait(0.01):
                work.checkpoint()
        finally:
            let_go.append(row_of().lease_token is None)

    def end_early() -> None:
        assert waving.wait(PATIENCE)
        ending()

    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, wave
    stage.sink.inert, stage.sink.on_drain = False, end_early
    make_row(5, 4, 1, 0)
    deliver("t")
    assert let_go == [False]
    assert row_of().lease_token is None


def test_f25_a_recovery_that_fails_keeps_its_repairs_and_attempts_no_head(frozen: FrozenClock, stage: Stage) -> None:
    def repair_one_and_fail(work: Work) -> None:
        with work.fenced():
            write_canonically("first")
        fail()

    stage.runtime.on_recovery = repair_one_and_fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("recovery failed")
    assert (is_durable("first"), stage.calls) == (True, ["recovery"])
    assert numbers(frozen.at) == (5, 4, 1, 500)


def test_f26_a_head_that_fails_acknowledges_nothing(frozen: FrozenClock, stage: Stage) -> None:
    stage.runtime.on_head = fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert result.outcome is Outcome.FAILED
    assert result.error.startswith("the head attempt failed")
    assert stage.calls == ["recovery", "head"]
    assert numbers(frozen.at) == (5, 4, 1, 500)


def test_f27_a_residual_scan_that_fails_acknowledges_nothing(frozen: FrozenClock, stage: Stage) -> None:
    stage.ledger.on_scan = fail
    make_row(5, 4, 1, 0)
    with fixed_jitter(0):
        result = deliver("t")
    assert (result.outcome, "secret" in result.error) == (Outcome.FAILED, False)
    assert numbers(frozen.at) == (5, 4, 1, 500)


def test_f31_what_a_pass_settles_under_its_own_lease_costs_no_second_pass(frozen: FrozenClock, stage: Stage) -> None:
    def settle(work: Work) -> None:
        with work.fenced(progress=True):
            write_canonically("settled")

    start, stage.runtime.settled = frozen.at, 1
    make_row(5, 4, 1, 0)
    assert run_pass(frozen, stage, during=settle).alarm == "cleared"
    assert numbers(start) == (5, 5, 0, None)


def test_f31_a_hooks_write_that_finish_does_not_scan_announces_a_generation(frozen: FrozenClock, stage: Stage) -> None:
    def write_an_outcome(work: Work) -> None:
        with work.fenced(bump=True):
            pass

    start = frozen.at
    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, write_an_outcome
    stage.ledger.on_scan = lambda: setattr(stage.messages, "deadline", None)
    make_row(5, 4, 1, 0)
    assert run_pass(frozen, stage).alarm == "rearmed"
    assert numbers(start)[:2] == (6, 5)


def test_f32_a_pass_over_stable_waits_writes_nothing_but_its_own_bookkeeping(frozen: FrozenClock, stage: Stage) -> None:
    stage.ledger.residue = WAITING
    make_row(5, 4, 1, 0)
    with counted_statements() as statements:
        run_pass(frozen, stage)
    assert statements.beyond(ThreadMaintenance._meta.db_table, PassRun._meta.db_table) == []
    assert row_of().dirty == 5


@pytest.mark.postgres
def test_the_wave_leaves_no_connection_open_when_its_process_ends(frozen: FrozenClock, stage: Stage) -> None:
    used = []

    def read(_: Work) -> None:
        row_of()
        used.append(connections["default"])

    stage.messages.inert, stage.messages.deadline, stage.messages.on_drain = False, frozen.at, read
    make_row(5, 4, 1, 0)
    run_pass(frozen, stage)
    assert [connection.connection is None for connection in used] == [False]
    wave_module.stop()
    assert [connection.connection is None for connection in used] == [True]
