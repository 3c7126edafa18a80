"""A crash at each failpoint, then recovery (alarm-host, 12; scenarios J).

Generated from the list of names, so that a new one cannot be forgotten. In this process a crash is an exception that
no handler of errors catches; the suites under `tests/process` kill real processes.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

import maintenance
from maintenance import failpoints, owner, reaper, renewal, sweep
from maintenance.ensure import ensure_alarm
from maintenance.testing import Crash, Failpoints, deliver
from tests.concurrency import PATIENCE, running
from tests.factories import MS, row_of
from tests.jobs import Jobs, table_of_jobs
from tests.marks import maintenance_database
from tests.rest import come_to_rest

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.ports import Work
    from maintenance.work import PassWork

pytestmark = maintenance_database

PACKAGE = Path(maintenance.__file__).parent

OURS = [*failpoints.REFERENCE, *failpoints.EXTENSIONS]

BEFORE_THE_COMMIT = {
    "maintenance:dirty:before",
    "maintenance:dirty:after",
    "maintenance:mutation:armed",
    "maintenance:mutation:finished",
}
"""A mutation that dies there has accepted nothing; its caller sees that and comes again with the same key."""


@pytest.fixture
def jobs(transactional_db: None) -> Iterator[Jobs]:
    with table_of_jobs(after_settling=renew_once) as made:
        yield made


def renew_once(work: Work) -> None:
    """What the renewal thread does when a pass is long, done here so that its failpoints are hit."""
    renewal.renew(cast("PassWork", work).lease)


# --- The matrix ---------------------------------------------------------------------------------


class Life:
    """Everything that can happen to a thread, one step after the other, each as if in a process of its own."""

    def __init__(self, jobs: Jobs, clock: FrozenClock) -> None:
        self._jobs, self._clock = jobs, clock

    def steps(self) -> list[Callable[[], object]]:
        return [
            lambda: ensure_alarm("t"),
            lambda: self._jobs.submit(1),
            lambda: deliver("t"),
            self._lose_a_worker,
            reaper.reap,
            self._lose_a_message,
            lambda: deliver("t"),
        ]

    def live(self) -> None:
        """Goes through all steps; one that crashes ends its process, and the next is another process's."""
        for step in self.steps():
            with suppress(Crash):
                step()

    def _lose_a_worker(self) -> None:
        self._jobs.submit(2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, "current", a_process_that_is_gone)
            patch.setattr(self._jobs, "on_settle", be_killed)
            deliver("t")

    def _lose_a_message(self) -> None:
        self._clock.at += 10_000 * MS
        sweep.sweep()


def a_process_that_is_gone() -> str:
    """An owner whose death this machine can prove."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    return f"{owner.machine()}:{gone.pid}:1"


def be_killed(*_: object) -> NoReturn:
    raise Crash


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("name", OURS)
def test_a_crash_at_any_failpoint_loses_nothing_and_repeats_nothing(
    name: str, fused: bool, jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint], settings: Settings
) -> None:
    settings.MAINTENANCE = {"FUSED": fused}
    points.crash_at(name)
    Life(jobs, frozen).live()
    assert points.pending == [], "the crash happened"
    if name in BEFORE_THE_COMMIT:
        assert 1 not in jobs.settled()
        jobs.submit(1)

    come_to_rest(frozen)

    assert jobs.settled() == {1: 1, 2: 1}
    row = row_of()
    assert (row.is_dirty, row.alarm_at, row.lease_token, row.mutating_until) == (False, None, None, None)


def test_every_failpoint_is_hit_by_the_life_of_a_thread(
    jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    Life(jobs, frozen).live()

    assert set(OURS) - set(points.seen) == set()


def test_every_failpoint_in_the_code_is_declared_and_every_declared_one_is_in_the_code() -> None:
    hit = {
        argument.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.hit"
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant)
    }

    assert hit == set(OURS)


# --- A pause ------------------------------------------------------------------------------------


def live_and_settle(jobs: Jobs, thread_id: str) -> None:
    """A thread's life without an accident."""
    ensure_alarm(thread_id)
    jobs.submit(1, thread_id)
    deliver(thread_id)


@pytest.mark.parametrize("name", failpoints.REFERENCE)
def test_j12_a_pause_at_any_of_the_ten_changes_nothing_of_the_outcome(
    name: str, jobs: Jobs, frozen: FrozenClock, points: Failpoints, sent: list[Hint]
) -> None:
    live_and_settle(jobs, "unpaused")
    reached, go_on = Event(), Event()

    def pause(_: str) -> None:
        reached.set()
        assert go_on.wait(PATIENCE)

    points.arm(name, pause)
    with running(lambda: live_and_settle(jobs, "paused")):
        assert reached.wait(PATIENCE)
        go_on.set()

    assert jobs.settled("paused") == jobs.settled("unpaused") == {1: 1}
    paused, unpaused = row_of("paused"), row_of("unpaused")
    for column in ("dirty", "processed", "alarm_at", "alarm_seq", "lease_token", "lease_epoch", "last_report"):
        assert getattr(paused, column) == getattr(unpaused, column)


# --- Arming -------------------------------------------------------------------------------------


def test_j13_armed_failpoints_are_consumed_in_order_and_once_each(points: Failpoints) -> None:
    consumed: list[str] = []
    for name in ("maintenance:begin:after", "maintenance:finish:before"):
        points.arm(name, consumed.append)

    failpoints.hit("maintenance:finish:before", "not at the head")
    failpoints.hit("maintenance:begin:after", "first")
    failpoints.hit("maintenance:begin:after", "consumed already")
    failpoints.hit("maintenance:finish:before", "second")
    failpoints.hit("maintenance:finish:before", "nothing is armed")

    assert consumed == ["first", "second"]
    assert points.pending == []


def test_j13_a_name_that_no_code_hits_cannot_be_armed(points: Failpoints) -> None:
    with pytest.raises(ValueError, match="no failpoint 'maintenance:begin:maybe'"):
        points.crash_at("maintenance:begin:maybe")


def test_j14_nothing_that_ships_arms_a_failpoint_but_the_test_kit() -> None:
    arming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"failpoints.arm", "arm"}
    }
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse((PACKAGE / "failpoints.py").read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }

    assert arming == {"testing.py"}
    assert imported == {"annotations", "Callable"}, "it reads no setting and no environment"


def test_j14_a_process_that_nobody_armed_passes_every_failpoint_by() -> None:
    assert failpoints._handler is None
    for name in OURS:
        failpoints.hit(name, "t")
