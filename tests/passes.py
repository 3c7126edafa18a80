"""An actionable pass as the scenarios run it, and what its canonical work may leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maintenance import clock
from maintenance.delivery import Outcome
from maintenance.gate import mutation
from maintenance.models import WorkerHeartbeat
from maintenance.ports import RecoveryReport, Residue
from maintenance.testing import deliver
from tests.concurrency import elsewhere
from tests.factories import MS

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.history import Report
    from maintenance.ports import Work
    from tests.stubs import Body, Stage

REPAIRED = RecoveryReport(submission_id="s", decision="RepairInputMarker", disposition="repaired")
DEFERRED = RecoveryReport(submission_id="s", decision="ResumeFromTurnBoundary", disposition="deferred")
UNKNOWN = RecoveryReport(submission_id="s", decision="AwaitUnknownResolution", disposition="unknown")

WAITING = Residue(nonterminal=1)
"""One submission that waits for something outside."""
GOING_ON = Residue(nonterminal=1, autonomous=True)
"""One submission that can go on by itself, but cannot be claimed at once."""
CLAIMABLE = Residue(nonterminal=1, autonomous=True, claimable_head=True)


def run_pass(frozen: FrozenClock, stage: Stage, *, during: Body | None = None) -> Report:
    """Runs the pass of the row at its slot, the head attempt taking 10 ms; it must run to its end."""

    def take_ten_milliseconds(work: Work) -> None:
        if during is not None:
            during(work)
        frozen.at += 10 * MS

    stage.runtime.on_head = take_ten_milliseconds
    result = deliver("t")
    assert result.outcome is Outcome.RAN
    assert result.report is not None
    return result.report


def mutate_elsewhere(_: object = None) -> None:
    """A mutation without a wake, committed on another connection."""

    def mutate() -> None:
        with mutation("t", wake=False):
            pass

    elsewhere(mutate)


def write_canonically(name: str) -> None:
    """A write of canonical work, such as a repair or a settlement; a heartbeat row stands for it."""
    WorkerHeartbeat.objects.create(worker=name, seen_at=clock.now(), started_at=clock.now())


def is_durable(name: str) -> bool:
    """Whether that write was committed."""
    return WorkerHeartbeat.objects.filter(worker=name).exists()
