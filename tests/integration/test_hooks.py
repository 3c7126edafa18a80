"""Publication, projection and messages (alarm-host, 6; scenarios I, as the design's 3.6 amends them)."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connection
from django.test.utils import CaptureQueriesContext

from maintenance import clock, hooks, status
from maintenance.delivery import Outcome
from maintenance.doctor import Level, work
from maintenance.gate import mutation, prearmed_mutation
from maintenance.hooks import Hooks
from maintenance.models import PassRun
from maintenance.ports import Residue, Work
from maintenance.testing import deliver
from tests.factories import MS, make_row, numbers, row_of
from tests.jobs import execute, table_of_jobs
from tests.logs import errors, events
from tests.marks import maintenance_database
from tests.rest import come_to_rest
from tests.stubs import StubPublication

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db

committed = maintenance_database
"""For what happens after a commit."""


def fail(kind: type[BaseException] = ValueError) -> None:
    raise kind("the customer's card is 4242")


# --- After a commit -----------------------------------------------------------------------------


def local_sink(stage: Stage) -> StubPublication:
    """Scripts the sink as one that is drained right after the commit of a mutation."""
    stage.sink.inert = False
    stage.sink.inline = True
    return stage.sink


@committed
def test_an_inline_sink_is_drained_once_between_the_commit_and_the_hint(stage: Stage, sent: list[Hint]) -> None:
    sink = local_sink(stage)
    seen: list[tuple[bool, int]] = []
    sink.on_drain = lambda: seen.append((connection.in_atomic_block, len(sent)))
    make_row(3, 3)

    with mutation("t"):
        pass

    assert seen == [(False, 0)]
    assert stage.calls == ["invalidate", "drain"]
    assert len(sent) == 1


@committed
def test_an_inline_sink_is_drained_before_the_hint_of_a_prearmed_mutation(stage: Stage, sent: list[Hint]) -> None:
    local_sink(stage)
    make_row(3, 3)
    with prearmed_mutation("t", "call a bank"):
        stage.calls.clear()
        stage.sink.on_drain = lambda: stage.calls.append(f"hints {len(sent)}")

    assert stage.calls == ["invalidate", "drain", "hints 1"]
    assert len(sent) == 2


@committed
def test_i03_a_sink_that_cannot_be_told_is_not_drained_and_fails_nobody(
    stage: Stage, sent: list[Hint], caplog: pytest.LogCaptureFixture
) -> None:
    local_sink(stage).on_invalidate = fail
    make_row(3, 3)

    with mutation("t"):
        pass

    assert stage.calls == ["invalidate"]
    assert len(errors(caplog, "publication.deferred")) == 1
    assert row_of().is_dirty
    assert len(sent) == 1


def test_i03_a_sink_that_is_refused_by_the_database_takes_no_body_with_it(stage: Stage, sent: list[Hint]) -> None:
    def refused() -> None:
        execute("INSERT INTO no_such_table VALUES (1)")

    local_sink(stage).on_invalidate = refused
    with mutation("t"):
        make_row(1, 1, thread_id="written by the body")

    assert row_of("written by the body").dirty == 1


@committed
@pytest.mark.parametrize("defect", [ValueError, AssertionError, RecursionError])
def test_i04_a_failing_drain_after_the_commit_fails_nobody(
    stage: Stage, sent: list[Hint], caplog: pytest.LogCaptureFixture, defect: type[Exception]
) -> None:
    local_sink(stage).on_drain = lambda: fail(defect)
    make_row(3, 3)

    with mutation("t"):
        pass

    assert len(errors(caplog, "publication.deferred")) == 1
    assert "4242" not in caplog.text
    assert row_of().is_dirty
    assert len(sent) == 1


@committed
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, SoftTimeLimitExceeded])
def test_i05_an_interrupted_drain_interrupts_the_caller_of_a_committed_mutation(
    stage: Stage, sent: list[Hint], interruption: type[BaseException]
) -> None:
    local_sink(stage).on_drain = lambda: fail(interruption)
    make_row(3, 3)

    with pytest.raises(interruption), mutation("t"):
        pass

    assert (row_of().dirty, row_of().alarm_at is None) == (4, False)


def test_i06_inert_hooks_are_never_called_and_cost_no_statement(stage: Stage, frozen: FrozenClock) -> None:
    everything = (stage.sink, stage.projection, stage.messages)
    for port in everything:
        port.on_deadline = port.on_drain = fail
    stage.sink.on_invalidate = fail

    def statements_of_a_pass(thread_id: str) -> int:
        make_row(4, 3, 0, 0, thread_id=thread_id)
        with CaptureQueriesContext(connection) as queries:
            assert deliver(thread_id).outcome is Outcome.RAN
        return len(queries)

    with_inert_ports = statements_of_a_pass("with inert ports")
    with hooks.installed(Hooks(runtime=stage.runtime, ledger=stage.ledger)):
        assert statements_of_a_pass("without ports") == with_inert_ports


@committed
def test_i07_what_could_not_be_published_at_once_is_published_by_the_pass_that_settles(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    class Published(StubPublication):
        tail = 0

        def drain(self, work: Work | None, thread_id: str) -> None:
            if work is None:
                fail()
            self.tail = sum(jobs.settled().values())

        def pending_deadline(self, thread_id: str) -> datetime | None:
            return None if self.tail == sum(jobs.settled().values()) else clock.now()

    sink = Published([], inline=True)
    with table_of_jobs(publication=(sink,)) as jobs:
        jobs.submit(1)
        assert jobs.settled() == {1: 0}
        assert row_of().alarm_at == frozen.at

        come_to_rest(frozen)

        assert jobs.settled() == {1: 1}
        assert sink.tail == 1
        assert not row_of().is_dirty


# --- A producer in flight -----------------------------------------------------------------------


def test_i10_a_pass_beside_a_mutation_in_flight_certifies_nothing_and_the_next_one_does(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    stage.sink.inert = False
    stage.sink.wants_generation = True
    make_row(3, 3)
    with prearmed_mutation("t", "append"):
        deliver("t", forced=True)

        assert stage.sink.prepared == []
        row = row_of()
        assert (row.dirty, row.processed) == (4, 3)
        assert row.alarm_at is not None

    deliver("t")
    assert stage.sink.prepared == [4]
    assert numbers(frozen.at) == (4, 4, 0, None)


# --- Gating -------------------------------------------------------------------------------------


def test_i24_a_gating_sink_that_is_down_costs_one_pass_per_scan_interval(stage: Stage, frozen: FrozenClock) -> None:
    stage.sink.inert = False
    stage.sink.gates_execution = True
    stage.sink.deadline = frozen.at + timedelta(minutes=10)
    stage.ledger.residue = Residue(nonterminal=1, autonomous=True)
    make_row(4, 3, 1, 0)
    begun_at = []
    while frozen.at < stage.sink.deadline - timedelta(minutes=9, seconds=50):
        begun_at.append(frozen.at)
        deliver("t")
        frozen.at = row_of().alarm_at or stage.sink.deadline

    assert "head" not in stage.calls
    assert len(begun_at) == 10
    assert row_of().processed == 3


def test_i25_a_deadline_that_never_moves_on_is_not_polled_faster_than_the_least_delay(
    stage: Stage, frozen: FrozenClock
) -> None:
    stage.sink.inert = False
    stage.sink.deadline = frozen.at - timedelta(hours=1)
    make_row(4, 4, 0, 0)

    deliver("t")

    assert numbers(frozen.at) == (4, 4, 0, 50)


def passes_over_a_deadline_in_the_past(stage: Stage, frozen: FrozenClock, count: int) -> None:
    stage.sink.inert = False
    stage.sink.deadline = frozen.at - timedelta(hours=1)
    for _ in range(count):
        frozen.at = row_of().alarm_at or frozen.at
        assert deliver("t").outcome is Outcome.RAN


def test_i25_the_twentieth_pass_in_a_row_that_leaves_a_deadline_due_warns_once_and_names_the_port(
    stage: Stage, frozen: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    make_row(4, 4, 0, 0)
    passes_over_a_deadline_in_the_past(stage, frozen, 19)
    assert events(caplog, "port.deadline_stuck") == []

    passes_over_a_deadline_in_the_past(stage, frozen, 11)

    (told,) = events(caplog, "port.deadline_stuck")
    assert (told["thread"], told["passes"], told["ports"]) == ("t", 20, ["StubPublication"])
    began = list(PassRun.objects.order_by("id").values_list("started_at", flat=True))
    assert {after - before for before, after in pairwise(began)} == {50 * MS}


def test_i25_a_pass_that_finds_the_deadline_moved_on_begins_the_count_again(
    stage: Stage, frozen: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    make_row(4, 4, 0, 0)
    passes_over_a_deadline_in_the_past(stage, frozen, 19)
    stage.sink.on_drain = lambda: setattr(stage.sink, "deadline", frozen.at + 10 * MS)
    passes_over_a_deadline_in_the_past(stage, frozen, 1)
    stage.sink.on_drain = None

    passes_over_a_deadline_in_the_past(stage, frozen, 19)

    assert events(caplog, "port.deadline_stuck") == []


def test_i25_a_deadline_that_never_moves_on_shows_in_the_explanation_and_at_the_doctors(
    stage: Stage, frozen: FrozenClock
) -> None:
    make_row(4, 4, 0, 0)
    passes_over_a_deadline_in_the_past(stage, frozen, 19)
    assert "still due after 19 passes in a row" in status.explain(row_of(), frozen.at)
    assert not [finding for finding in work.examine() if finding.id == "work.stuck_deadline"]

    passes_over_a_deadline_in_the_past(stage, frozen, 1)

    (finding,) = [finding for finding in work.examine() if finding.id == "work.stuck_deadline"]
    assert finding.level is Level.WARNING
    assert "1 thread, 't' for one" in finding.text
