"""What the rules of the protocol machine act on: a thread, messages under way, passes in the middle of their work."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from unittest import mock

from django.db import connection
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from maintenance import begin, dispatch, hooks, passes
from maintenance.delivery import Begun, Delivery, Outcome
from maintenance.finish import Done
from maintenance.models import ThreadMaintenance
from maintenance.testing import fixed_jitter, frozen_clock
from maintenance.wave import Wave
from tests.model import ledger
from tests.model.calm import Calm, arrival
from tests.model.invariants import Watched, look, violations
from tests.model.ledger import DONE, Job, JobLedger, JobRuntime, Outbox, Sink, job_hooks

if TYPE_CHECKING:
    from maintenance.dispatch import Hint

T = TypeVar("T")

THREAD = "t"
START = datetime(2030, 1, 1, tzinfo=UTC)
SOON = timedelta(seconds=61)
NO_WRITES = {Outcome.PAUSED, Outcome.CLEARED, Outcome.SUPERSEDED, Outcome.EARLY, Outcome.BUSY}


@dataclass
class Held:
    """A pass in the middle of its work; perhaps it has lost its thread and does not know it yet."""

    begun: Begun
    done: Done | None = None


class Scene(RuleBasedStateMachine):
    """State and checks of the machine; its rules are in `machine`."""

    ports: ClassVar[dict[str, Callable[[], Any]]] = {}
    """What makes a broken port, by its name, in place of the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.frozen = self.stack.enter_context(frozen_clock(START))
        self.stack.enter_context(fixed_jitter(0.5))
        makers: dict[str, Callable[[], Any]] = {
            "runtime": JobRuntime,
            "ledger": JobLedger,
            "outbox": Outbox,
            "sink": Sink,
        }
        makers |= self.ports
        made: dict[str, Any] = {name: make() for name, make in makers.items()}
        self.runtime: JobRuntime = made["runtime"]
        self.sink: Sink = made["sink"]
        self.stack.enter_context(hooks.installed(job_hooks(**made)))
        self.stack.enter_context(mock.patch.object(dispatch, "send", self._send))
        # One thread, so that what fails fails again: elsewhere the wave of PostgreSQL has a thread of its own.
        self.stack.enter_context(mock.patch.object(Wave, "_start", _start_inline))
        self.messages: list[Hint] = []
        self.held: list[Held] = []
        self.dead: list[uuid.UUID] = []
        """Tokens of passes whose process is gone."""
        self.mutations: list[uuid.UUID] = []
        self.watched = Watched(THREAD, ports=True)
        self.stimuli = 0
        """What may cost a pass so far."""
        self.started = 0
        """Passes begun so far."""
        self.row: ThreadMaintenance | None = None
        self.asking: list[Job] = []
        """Jobs that want an answer and have none."""

    @initialize()
    def empty(self) -> None:
        ledger.clean()

    @invariant()
    def holds(self) -> None:
        seen = look(THREAD)
        assert violations(self.watched, seen) == []
        assert self.started <= 2 * self.stimuli + 5, f"{self.started} passes for {self.stimuli} reasons"
        if self.row and seen.row and seen.row.processed > self.row.processed:
            assert not seen.row.has_mutation_in_flight(seen.now), "A3: acknowledged beside a mutation in flight"
        self.row = seen.row
        self.asking = [job for job in seen.jobs if job.state != DONE and job.asks and not job.answered]

    def teardown(self) -> None:
        try:
            with self.stack:
                Calm(self).come_to_rest()
        finally:
            ledger.clean()

    def arriving(self, which: int) -> Delivery:
        """The delivery of one of the messages under way."""
        message = pick(self.messages, which)
        self.messages.remove(message)
        return arrival(message)

    def due_at(self) -> datetime | None:
        """When the slot's message would come, if that is soon and nothing holds it back."""
        row = self.row
        due = None if row is None or row.paused_at or row.quarantined_at else row.effective_due(self.frozen.at)
        return due if due is not None and due <= self.frozen.at + SOON else None

    def in_time(self) -> Delivery:
        """The delivery of the slot's own message, when it is due."""
        row, due = self.row, self.due_at()
        assert row is not None
        assert due is not None
        self.frozen.at = max(self.frozen.at, due)
        self.stimuli += 1
        return Delivery(thread_id=THREAD, seq=row.alarm_seq)

    def run(self, delivery: Delivery) -> None:
        """A whole task: the pass and what it goes on with in place."""
        before = stored()
        result = passes.deliver(delivery, may_go_on=lambda: True)
        self._note(result.outcome, before)
        for goes_on in (True, False):
            if result.next is None:
                return
            # Its begin was the finish of the one before, whose lease was its own until then.
            result = passes.go_on(result.next, may_go_on=partial(bool, goes_on))
            self._note(result.outcome, None)

    def start(self, delivery: Delivery) -> None:
        """The begin transaction alone."""
        before = stored()
        begun = begin.begin(delivery, uuid.uuid4())
        if isinstance(begun, Begun):
            self.held.append(Held(begun))
        self._note(begun if isinstance(begun, Outcome) else Outcome.RAN, before)

    def _note(self, outcome: Outcome, before: dict[str, Any] | None) -> None:
        """Counts what ran; what did not run must have written nothing."""
        if outcome in NO_WRITES:
            assert stored() == before, f"a delivery that was {outcome} wrote something"
        else:
            assert not (before and _is_leased(before, self.frozen.at)), "A5: a pass began beside a live one"
            self.started += 1
        if outcome is Outcome.FAILED:
            self.stimuli += 2

    def _send(self, hint: Hint) -> None:
        assert not connection.in_atomic_block, "a hint went out before its transaction had committed"
        due = hint.eta if hint.countdown is None else self.frozen.at + hint.countdown
        self.messages.append(replace(hint, eta=due))


def owns(held: Held) -> bool:
    """Whether the stored row still names this pass."""
    row, lease = stored(), held.begun.lease
    return row is not None and (row["lease_token"], row["lease_epoch"]) == (lease.token, lease.epoch)


def stored() -> dict[str, Any] | None:
    """The row as it is stored now."""
    row = ThreadMaintenance.objects.filter(pk=THREAD).values().first()
    return None if row is None else dict(row)


def _is_leased(row: dict[str, Any], now: datetime) -> bool:
    return row["lease_expires_at"] is not None and row["lease_expires_at"] > now


def pick(items: list[T], which: int) -> T:
    """One of several, counted from the newest; wrapped around."""
    return items[-1 - which % len(items)]


def _start_inline(wave: Wave) -> None:
    wave._inline = True
