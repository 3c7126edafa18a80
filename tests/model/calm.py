"""The calm after the faults: whoever acted is gone, nothing gets lost any more, and time goes on until all is done."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from maintenance import operations, passes, sweep
from maintenance.conf import get_settings
from maintenance.delivery import Begun, Delivery, Outcome
from maintenance.models import ThreadMaintenance
from tests.model import ledger
from tests.model.invariants import at_rest, look, violations
from tests.model.ledger import Letter

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from maintenance.dispatch import Hint
    from tests.model.scene import Scene

MAX_TICKS = 300
WATCHED_TICKS = 4
"""So long a killed mutation is looked at in flight; then its expiry comes at once."""
IDLE_PASSES = 6
"""Passes that may find nothing to do before the thread rests, apart from one a scan interval beside a mutation."""


class Calm:
    """Delivers every message in time, sweeps every second, and counts the passes that did nothing."""

    def __init__(self, machine: Scene) -> None:
        self.machine = machine
        self.thread_id = machine.watched.thread_id
        self.idle_passes = 0
        self.ticks_in_flight = 0
        """Sweep intervals in which a killed mutation still counted as in flight."""

    def come_to_rest(self) -> None:
        if self._row() is None:
            return
        operations.resume(self.thread_id, actor="a person", reason="calm")
        operations.release(self.thread_id, actor="a person", reason="calm")
        for _ in range(MAX_TICKS):
            self._deliver_what_is_due()
            if not at_rest(look(self.thread_id)):
                break
            self._tick()
        seen = look(self.thread_id)
        assert at_rest(seen) == []
        assert violations(self.machine.watched, seen) == []
        assert set(self._settled()) <= set(self.machine.sink.delivered), "P1: a settlement was published to nobody"
        allowed = IDLE_PASSES + self.ticks_in_flight
        assert self.idle_passes <= allowed, f"{self.idle_passes} passes did nothing, {allowed} may"

    def _tick(self) -> None:
        """Goes on to the next moment at which anything can happen, one sweep interval at least."""
        row, frozen = self._row(), self.machine.frozen
        assert row is not None
        due = row.effective_due(frozen.at) or frozen.at
        if row.has_mutation_in_flight(frozen.at):
            self.ticks_in_flight += 1
            if self.ticks_in_flight > WATCHED_TICKS and row.mutating_until:
                due = row.mutating_until
        frozen.at = max(frozen.at + get_settings().sweep_interval, due)
        sweep.sweep()

    def _deliver_what_is_due(self) -> None:
        while arrived := [hint for hint in self.machine.messages if _has_come(hint, self.machine.frozen.at)]:
            self.machine.messages.remove(arrived[0])
            self._deliver(arrival(arrived[0]))

    def _deliver(self, delivery: Delivery) -> None:
        following = self._watched(lambda: passes.deliver(delivery, may_go_on=lambda: True))
        while following is not None:
            following = self._watched(partial(passes.go_on, following, may_go_on=lambda: True))

    def _watched(self, run: Callable[[], passes.Result]) -> Begun | None:
        owed = self._owed()
        result = run()
        assert result.outcome is not Outcome.FAILED, result.error
        if result.outcome is Outcome.RAN and self._owed() == owed:
            self.idle_passes += 1
        return result.next

    def _owed(self) -> tuple[object, ...]:
        jobs = [(job.pk, job.state, job.asks) for job in ledger.open_jobs(self.thread_id)]
        letters = Letter.objects.filter(thread_id=self.thread_id, sent=False).count()
        return jobs, letters, len(self.machine.sink.delivered)

    def _settled(self) -> list[int | None]:
        return [record.job_id for record in ledger.settlements(self.thread_id, after=0)]

    def _row(self) -> ThreadMaintenance | None:
        return ThreadMaintenance.objects.filter(pk=self.thread_id).first()


def arrival(hint: Hint) -> Delivery:
    """The delivery that a message makes when it comes."""
    return Delivery(thread_id=hint.thread_id, seq=hint.seq, trigger=hint.trigger, hops=hint.hops)


def _has_come(hint: Hint, now: datetime) -> bool:
    return hint.eta is None or hint.eta <= now
