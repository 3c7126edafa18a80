"""Errors, interruption and time limits of a pass (alarm-host, 11 and 15.8; scenarios K; R-15)."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from django.db import IntegrityError, OperationalError, connection

from maintenance import sweep
from maintenance.delivery import Outcome
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.ports import Work
from maintenance.testing import Crash, deliver, fixed_jitter
from tests.arrivals import LEASE, arrive, raise_it, stored
from tests.factories import make_row, numbers, row_of
from tests.jobs import execute, table_of_jobs
from tests.marks import maintenance_database
from tests.rest import come_to_rest
from tests.stubs import Broken, fail

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db

committed = maintenance_database
"""For what happens after a commit."""


# --- Where a pass can fail ----------------------------------------------------------------------


def with_ports(stage: Stage, frozen: FrozenClock) -> None:
    """Scripts every port as present, with nothing due but the dirty generation."""
    for port in (stage.sink, stage.projection, stage.messages):
        port.inert = False
    stage.sink.wants_generation = True
    stage.messages.deadline = frozen.at


def break_preparing(stage: Stage) -> None:
    stage.sink.on_prepare = fail


def break_backfill(stage: Stage) -> None:
    stage.projection.on_drain = fail


def break_drain(stage: Stage) -> None:
    stage.sink.on_drain = fail


def break_gate(stage: Stage) -> None:
    stage.sink.gates_execution = True
    stage.sink.on_deadline = fail


def break_recovery(stage: Stage) -> None:
    stage.runtime.on_recovery = fail


def break_head(stage: Stage) -> None:
    stage.runtime.on_head = fail


def break_wave(stage: Stage) -> None:
    stage.messages.on_drain = fail


def break_scan(stage: Stage) -> None:
    stage.ledger.on_scan = fail


def break_finish_deadline(stage: Stage) -> None:
    stage.sink.on_deadline = lambda: fail() if "scan" in stage.calls else None


CANONICAL = {"recovery", "head"}


@pytest.mark.parametrize(
    ("broken", "ran", "text"),
    [
        (break_preparing, set(), "preparing the generation failed"),
        (break_backfill, CANONICAL, "the projection backfill failed"),
        (break_drain, set(), "a publication sink failed"),
        (break_gate, set(), "a publication deadline failed"),
        (break_recovery, {"recovery"}, "recovery failed"),
        (break_head, CANONICAL, "the head attempt failed"),
        (break_wave, CANONICAL, "the message wave failed"),
        (break_scan, CANONICAL, "Broken was raised"),
        (break_finish_deadline, CANONICAL, "Broken was raised"),
    ],
)
def test_k01_a_step_that_fails_leaves_the_generation_armed_and_a_redacted_error(
    stage: Stage,
    frozen: FrozenClock,
    caplog: pytest.LogCaptureFixture,
    broken: Callable[[Stage], None],
    ran: set[str],
    text: str,
) -> None:
    with_ports(stage, frozen)
    broken(stage)
    make_row(5, 4, 1, 0)

    with fixed_jitter(0):
        result = deliver("t")

    assert (result.outcome, result.failed) == (Outcome.FAILED, True)
    assert CANONICAL & set(stage.calls) == ran
    assert numbers(frozen.at) == (5, 4, 1, 500)
    row = row_of()
    assert (row.lease_token, row.failures, row.last_outcome) == (None, 1, "failed")
    for told in (result.error, row.last_error, PassRun.objects.get().error):
        assert text in told
        assert "secret detail" not in told


@pytest.mark.parametrize("broken", [break_backfill, break_wave])
def test_k01_canonical_work_has_its_turn_before_a_derived_failure_is_raised(
    frozen: FrozenClock, stage: Stage, broken: Callable[[Stage], None]
) -> None:
    with_ports(stage, frozen)
    broken(stage)
    with table_of_jobs(projection=stage.projection, messages=stage.messages) as jobs:
        jobs.submit(1)

        assert deliver("t").outcome is Outcome.FAILED

        assert jobs.settled() == {1: 1}
        assert (row_of().dirty, row_of().processed) == (2, 0)


def test_k01_a_begin_that_fails_is_named_and_writes_nothing(stage: Stage, frozen: FrozenClock) -> None:
    make_row(5, 4, 1, 0, schema_version=2)
    before = stored()

    result = deliver("t")

    assert (result.outcome, result.failed) == (Outcome.FAILED, True)
    assert result.error.startswith("begin maintenance pass: ")
    assert stored() == before
    assert stage.calls == []


def test_k01_a_finish_that_fails_is_tried_again_and_then_named(
    stage: Stage, frozen: FrozenClock, points: Failpoints
) -> None:
    for _ in range(3):
        points.arm("lease:release:before", lambda _: raise_it(OperationalError("the disk is full")))
    make_row(5, 4, 1, 0)

    result = deliver("t")

    assert points.pending == []
    assert result.error.startswith("finish maintenance pass: ")
    assert (row_of().processed, row_of().last_outcome) == (4, "failed")


def test_a_finish_that_fails_once_is_tried_again_within_the_lease(
    stage: Stage, frozen: FrozenClock, points: Failpoints
) -> None:
    points.arm("lease:release:before", lambda _: raise_it(OperationalError("canceling statement")))
    make_row(5, 4, 1, 0)

    assert deliver("t").outcome is Outcome.RAN
    assert numbers(frozen.at) == (5, 5, 0, None)
    assert stage.calls == ["recovery", "head", "scan", "scan"]


def test_k01_a_crash_after_the_finish_changes_nothing_of_it(
    stage: Stage, frozen: FrozenClock, points: Failpoints
) -> None:
    points.crash_at("maintenance:finish:after")
    make_row(5, 4, 1, 0)

    with pytest.raises(Crash):
        deliver("t")

    assert numbers(frozen.at) == (5, 5, 0, None)
    assert row_of().lease_token is None


# --- Convergence --------------------------------------------------------------------------------


@committed
def test_k02_a_head_that_fails_once_is_settled_by_a_later_delivery_alone(frozen: FrozenClock, sent: list[Hint]) -> None:
    with table_of_jobs() as jobs:
        jobs.on_settle = lambda *_: fail()
        jobs.submit(1)
        del sent[:]

        assert deliver("t").outcome is Outcome.FAILED
        assert row_of().alarm_at is not None
        assert [hint.seq for hint in sent] == [row_of().alarm_seq]
        assert jobs.settled() == {1: 0}

        jobs.on_settle = None
        come_to_rest(frozen)
        assert jobs.settled() == {1: 1}
        assert not row_of().is_dirty


def test_k14_a_log_that_cannot_be_written_changes_no_outcome(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        """A stream whose reader has gone."""

        def write(self, text: str, /) -> int:
            raise BrokenPipeError(text)

    monkeypatch.setattr(logging, "raiseExceptions", False)
    broken = logging.StreamHandler(Gone())
    logging.getLogger().addHandler(broken)
    try:
        with table_of_jobs() as jobs:
            jobs.on_settle = lambda *_: fail()
            jobs.submit(1)
            assert deliver("t").outcome is Outcome.FAILED

            jobs.on_settle = None
            come_to_rest(frozen)
            assert jobs.settled() == {1: 1}
    finally:
        logging.getLogger().removeHandler(broken)


# --- When nothing can be written ----------------------------------------------------------------


@committed
def test_k11_a_failure_that_cannot_be_recorded_waits_for_the_lease(
    stage: Stage, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    """The database is gone when the pass wants to record its failure: nothing is written, expiry decides."""
    stage.runtime.on_head = fail
    points.arm("lease:release:before", lambda _: raise_it(OperationalError("server closed the connection")))
    make_row(5, 4, 1, 0)

    assert deliver("t").failed
    row = row_of()
    assert (row.processed, row.failures, row.lease_epoch) == (4, 0, 1)
    assert row.lease_token is not None

    stage.runtime.on_head = None
    frozen.at += LEASE
    assert sweep.sweep() == 1
    assert arrive(sent[-1].seq).outcome is Outcome.RAN
    assert numbers(frozen.at) == (5, 5, 0, None)


# --- Redaction ----------------------------------------------------------------------------------


def test_r15_a_value_that_the_database_quotes_reaches_no_record_and_no_log_line(
    stage: Stage, frozen: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    def insert_twice(work: Work) -> None:
        with work.fenced():
            ThreadMaintenance.objects.create(thread_id="sk-live-4242", dirty=0)
            execute("INSERT INTO wakeful_maintenance_threadmaintenance (thread_id) VALUES ('sk-live-4242')")

    stage.runtime.on_head = insert_twice
    make_row(5, 4, 1, 0)

    result = deliver("t")

    assert "a database constraint refused the write" in result.error
    for told in (result.error, row_of().last_error, PassRun.objects.get().error, caplog.text):
        assert "4242" not in told


def test_r15_the_database_does_quote_the_value_so_the_case_above_can_fail() -> None:
    ThreadMaintenance.objects.create(thread_id="sk-live-4242", dirty=0)
    with pytest.raises(IntegrityError) as caught:
        execute("INSERT INTO wakeful_maintenance_threadmaintenance (thread_id) VALUES ('sk-live-4242')")

    assert "4242" in str(caught.value) or connection.vendor == "sqlite"


def test_what_the_host_raised_is_in_the_workers_log_with_its_place(
    stage: Stage, frozen: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    stage.runtime.on_head = fail
    make_row(5, 4, 1, 0)

    deliver("t")

    assert f"{Broken.__name__}: secret detail of the host" in caplog.text
    assert "stubs.py" in caplog.text


@committed
@pytest.mark.usefixtures("stage")
def test_a_pass_that_fails_before_its_first_port_gives_its_thread_back(points: Failpoints) -> None:
    """Its process lives, so no reaper would; a helper thread that cannot start is one such failure."""
    make_row(4, 3, 0, 0, seq=7)
    points.arm("maintenance:begin:after", lambda _: raise_it(RuntimeError("can't start new thread")))

    assert arrive(7).outcome is Outcome.FAILED

    assert (row_of().lease_token, row_of().failures, row_of().is_dirty) == (None, 1, True)
