"""The projection: a disposable index, one batch a pass, never in the way of canonical work (scenarios I-13 to I-17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from maintenance import clock, hooks
from maintenance.ensure import ensure_alarm
from maintenance.hooks import Hooks
from maintenance.ports import InertProjection, Work
from maintenance.testing import Crash, deliver
from tests.factories import MS, make_row, numbers, row_of
from tests.jobs import execute
from tests.logs import errors
from tests.rest import come_to_rest
from tests.stubs import fail

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db


def test_i13_a_due_backfill_runs_one_batch_and_the_head_still_settles(stage: Stage, frozen: FrozenClock) -> None:
    stage.projection.inert = False
    stage.projection.deadline = frozen.at
    stage.runtime.settled = 1
    make_row(4, 3, 1, 0)

    result = deliver("t")

    assert stage.calls.count("backfill") == 1
    assert result.report is not None
    assert result.report.settled == 1


@pytest.mark.parametrize(("deadline_ms", "backfills"), [(None, 0), (1, 0), (60_000, 0), (0, 1), (-5_000, 1)])
def test_i17_a_quiet_thread_is_backfilled_once_when_that_is_due_and_not_before(
    stage: Stage, frozen: FrozenClock, deadline_ms: int | None, backfills: int
) -> None:
    stage.projection.inert = False
    stage.projection.deadline = None if deadline_ms is None else frozen.at + deadline_ms * MS
    stage.projection.on_drain = lambda _: setattr(stage.projection, "deadline", None)
    make_row(4, 4, 0, 0)

    deliver("t")

    assert stage.calls.count("backfill") == backfills


@dataclass
class Index(InertProjection):
    """A projection over `head` records, four a batch, whose watermark is the number of its rows."""

    head: int
    crash: str = ""
    inert: bool = False

    def watermark(self) -> int:
        return int(execute("SELECT count(*) FROM tests_index")[0][0])

    def pending_deadline(self, thread_id: str) -> datetime | None:
        return clock.now() if self.watermark() < self.head else None

    def drain_due(self, work: Work) -> bool:
        with work.fenced():
            done = self.watermark()
            for number in range(done, min(done + 4, self.head)):
                execute("INSERT INTO tests_index VALUES (%s)", number)
            self._die("before its commit")
        self._die("after its commit")
        return True

    def _die(self, where: str) -> None:
        if self.crash == where:
            self.crash = ""
            raise Crash(where)


@pytest.fixture
def index(frozen: FrozenClock, db: None) -> Iterator[Index]:
    execute("CREATE TABLE tests_index (number integer PRIMARY KEY)")
    made = Index(head=9)
    try:
        with hooks.installed(Hooks(projection=made)):
            yield made
    finally:
        execute("DROP TABLE tests_index")


def test_i14_a_backlog_of_nine_takes_three_passes_of_four(index: Index, frozen: FrozenClock) -> None:
    make_row(4, 4, 0, 0)
    watermarks = []
    while row_of().alarm_at is not None:
        frozen.at = max(frozen.at, row_of().alarm_at or frozen.at)
        deliver("t")
        watermarks.append(index.watermark())

    assert watermarks == [4, 8, 9]


@pytest.mark.parametrize(("where", "kept"), [("before its commit", 0), ("after its commit", 4)])
def test_i15_a_backfill_that_dies_loses_at_most_its_batch_and_converges(
    index: Index, frozen: FrozenClock, where: str, kept: int
) -> None:
    make_row(4, 4, 0, 0)
    index.crash = where
    with pytest.raises(Crash):
        deliver("t")
    assert index.watermark() == kept

    come_to_rest(frozen)

    assert index.watermark() == 9


def test_a_projection_that_cannot_say_counts_as_due_and_is_logged_once(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], caplog: pytest.LogCaptureFixture
) -> None:
    stage.projection.inert = False
    stage.projection.on_deadline = fail
    make_row(4, 4)

    ensure_alarm("t")

    assert numbers(frozen.at)[3] == 50
    assert len(errors(caplog, "projection.deadline_unavailable")) == 1
