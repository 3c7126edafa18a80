"""A sink over the canonical log, whose cursor is a position of it (scenarios I-08 and I-09, DESIGN 3.7 and 8).

What lies between the cursor and the head of the log is owed. Nobody flags it, so no death can lose the flag, and an
append under a pass's lease, which announces no generation, is owed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from django.db.models import Max

from agents import api, failpoints
from agents.models import LogRecord
from agents.runtime import ThreadLedger, ThreadRuntime
from maintenance import clock, hooks
from maintenance.delivery import Outcome
from maintenance.gate import mutation
from maintenance.hooks import Hooks
from maintenance.ports import InertPublication, Work
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, run, run_after_a_death
from tests.factories import row_of
from tests.jobs import execute

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.usefixtures("form")]


@dataclass
class LogSink(InertPublication):
    """Delivers the records of a log in order; its cursor moves by compare-and-set, under the lease if there is one."""

    delivered: list[int] = field(default_factory=list)
    """The sequences that reached the outside; repeats are allowed."""
    on_delivery: Callable[[], None] | None = None
    """Called once, after the next record has left."""
    inline: bool = False
    inert: bool = False

    def position(self) -> int:
        return int(execute("SELECT position FROM tests_cursor")[0][0])

    def head(self) -> int:
        head: int | None = LogRecord.objects.filter(thread_id="t").aggregate(head=Max("sequence"))["head"]
        return head or 0

    def drain(self, work: Work | None, thread_id: str) -> None:
        position, head = self.position(), self.head()
        for sequence in range(position + 1, head + 1):
            self.delivered.append(sequence)
            if self.on_delivery is not None:
                meanwhile, self.on_delivery = self.on_delivery, None
                meanwhile()
        if work is None:
            self._advance(position, head)
        else:
            with work.fenced():
                self._advance(position, head)

    def _advance(self, before: int, after: int) -> None:
        execute("UPDATE tests_cursor SET position = %s WHERE position = %s", after, before)

    def pending_deadline(self, thread_id: str) -> datetime | None:
        return clock.now() if self.position() < self.head() else None


@pytest.fixture
def sink() -> Iterator[LogSink]:
    execute("DROP TABLE IF EXISTS tests_cursor")
    execute("CREATE TABLE tests_cursor (position bigint NOT NULL)")
    execute("INSERT INTO tests_cursor VALUES (0)")
    made = LogSink()
    try:
        with hooks.installed(Hooks(runtime=ThreadRuntime(), ledger=ThreadLedger(), publication=(made,))):
            yield made
    finally:
        execute("DROP TABLE tests_cursor")


@pytest.fixture
def steps(declare: Declare) -> str:
    """Return the name of an agent of one step."""

    def handler(ctx: api.Context, given: Any) -> Any:
        return ctx.step("one", lambda: given)

    declare("steps", handler)
    return "steps"


APPENDS = (failpoints.CLAIM_AFTER, failpoints.STEP_AFTER, failpoints.SETTLE_AFTER)
"""Right after each commit in which an attempt appended."""


@pytest.mark.parametrize("died_at", APPENDS)
def test_i08_what_a_killed_pass_had_appended_is_owed_and_published_by_the_next_one(
    sink: LogSink, steps: str, points: Failpoints, died_at: str
) -> None:
    """No generation tells of the append: the thread is dirty with the one that the pass began with."""
    api.submit("t", steps, 7)
    announced = row_of().dirty
    points.crash_at(died_at)
    with pytest.raises(Crash):
        deliver("t")
    row = row_of()
    assert sink.position() < sink.head(), "the append was committed and the sink knows nothing of it"
    assert (row.dirty, row.alarm_at is not None) == (announced, True)
    assert row.dirty > row.processed

    run_after_a_death()

    assert sink.position() == sink.head() == 4
    assert list(dict.fromkeys(sink.delivered)) == [1, 2, 3, 4]
    assert row_of().alarm_at is None
    assert not row_of().is_dirty


def test_i09_of_two_passes_that_overlap_the_older_ends_last_and_moves_no_cursor(sink: LogSink, steps: str) -> None:
    """Its destination was slow, its lease expired, and the pass that took over has published more meanwhile."""
    api.submit("t", steps, 7)
    positions: list[int] = []

    def be_overtaken() -> None:
        travel(LEASE)
        api.submit("t", steps, 8)
        run()
        positions.append(sink.position())

    sink.on_delivery = be_overtaken
    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert positions == [sink.head()] == [7]
    assert sink.position() == 7
    run()
    assert (sink.position(), row_of().alarm_at) == (7, None)


def test_i09_of_two_drains_after_a_commit_the_older_ends_last_and_moves_no_cursor(sink: LogSink, steps: str) -> None:
    """No lease stands between the web processes that drain: their cursor is moved from the place where they read it."""
    api.submit("t", steps, 7)
    run()
    execute("UPDATE tests_cursor SET position = 1")
    sink.delivered.clear()
    sink.inline, positions = True, list[int]()

    def be_overtaken() -> None:
        api.submit("t", steps, 8)
        run()
        positions.append(sink.position())

    sink.on_delivery = be_overtaken
    with mutation("t"):
        pass

    assert positions == [7]
    assert sink.position() == 7, "the older drain had read less"
    assert list(dict.fromkeys(sink.delivered)) == [2, 3, 4, 5, 6, 7]
    run()
    assert row_of().alarm_at is None


@pytest.mark.parametrize("inline", [True, False])
def test_i09_a_cursor_that_was_thrown_back_is_behind_its_log_and_its_thread_comes_back(
    sink: LogSink, steps: str, *, inline: bool
) -> None:
    """Whatever threw it back: the next look derives from the log what is owed again."""
    api.submit("t", steps, 7)
    run()
    assert row_of().alarm_at is None
    execute("UPDATE tests_cursor SET position = 2")
    sink.inline = inline
    sink.delivered.clear()

    with mutation("t"):
        pass
    run()

    assert sink.delivered == [3, 4]
    assert (sink.position(), row_of().alarm_at) == (4, None)
