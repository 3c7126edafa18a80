"""Whatever holds a thread up, it costs at most one pass in a scan interval, and a piece of work costs one pass."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from maintenance import clock, gate, hooks
from maintenance.conf import get_settings
from maintenance.models import ThreadMaintenance
from maintenance.ports import Work
from maintenance.testing import deliver, fixed_jitter
from tests.model import ledger
from tests.model.invariants import at_rest, look
from tests.model.ledger import Sink, job_hooks

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("transactional_db")]

THREAD = "t"
MINUTE = timedelta(minutes=1)


@dataclass
class DownSink(Sink):
    """A gating sink whose destination does not answer; it notes when it will try again."""

    retry_after: timedelta = MINUTE
    raises: bool = False
    retry_at: datetime | None = None
    gates_execution: bool = True

    def drain(self, work: Work | None, thread_id: str) -> None:
        self.retry_at = clock.now() + self.retry_after
        if self.raises:
            message = "nobody answers"
            raise ConnectionError(message)

    def pending_deadline(self, thread_id: str) -> datetime | None:
        return self.retry_at or clock.now()


def test_a_killed_prearmed_mutation_costs_one_pass_a_scan_interval(frozen: FrozenClock, sent: list[Hint]) -> None:
    with hooks.installed(job_hooks()):
        gate._prearm(THREAD, "a call", uuid.uuid4())
        moments = _passes_within(frozen, MINUTE)
        assert _closest(moments[1:]) >= get_settings().scan_interval
        _passes_within(frozen, MINUTE)
        assert at_rest(look(THREAD)) == []


@pytest.mark.parametrize("retry_after", [timedelta(seconds=1), MINUTE])
def test_a_gating_sink_that_is_down_costs_one_pass_a_scan_interval(
    frozen: FrozenClock, sent: list[Hint], retry_after: timedelta
) -> None:
    with hooks.installed(job_hooks(sink=DownSink(retry_after=retry_after))):
        _submit()
        assert _closest(_passes_within(frozen, MINUTE)) >= get_settings().scan_interval


def test_a_gating_sink_that_raises_backs_off(frozen: FrozenClock, sent: list[Hint]) -> None:
    with hooks.installed(job_hooks(sink=DownSink(raises=True))), fixed_jitter(1 - 1e-9):
        _submit()
        moments = _passes_within(frozen, MINUTE)
        assert [round((moment - moments[0]).total_seconds()) for moment in moments] == [0, 1, 3, 7, 15, 31]


@pytest.mark.parametrize("jobs", [1, 5])
def test_a_piece_of_work_costs_one_pass(frozen: FrozenClock, sent: list[Hint], jobs: int) -> None:
    with hooks.installed(job_hooks()):
        for _ in range(jobs):
            _submit()
        assert len(_passes_within(frozen, MINUTE)) == jobs
        assert at_rest(look(THREAD)) == []


def test_a_job_that_cannot_go_on_yet_costs_two_passes(frozen: FrozenClock, sent: list[Hint]) -> None:
    with hooks.installed(job_hooks()):
        with gate.mutation(THREAD) as made:
            ledger.add_job(THREAD, due_at=made.now + MINUTE / 2)
        assert len(_passes_within(frozen, MINUTE)) == 2
        assert at_rest(look(THREAD)) == []


def _submit() -> None:
    with gate.mutation(THREAD):
        ledger.add_job(THREAD)


def _passes_within(frozen: FrozenClock, span: timedelta) -> list[datetime]:
    """Runs each pass at the moment when it is due, for so long; the moments."""
    moments, end = list[datetime](), frozen.at + span
    while (due := _due_at(frozen.at)) is not None and due < end:
        frozen.at = max(frozen.at, due)
        deliver(THREAD)
        moments.append(frozen.at)
        assert len(moments) < 200, "a fast loop"
    frozen.at = end
    return moments


def _due_at(now: datetime) -> datetime | None:
    return ThreadMaintenance.objects.get(pk=THREAD).effective_due(now)


def _closest(moments: list[datetime]) -> timedelta:
    return min(later - earlier for earlier, later in pairwise(moments))
