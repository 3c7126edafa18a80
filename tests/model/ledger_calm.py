"""The calm after the faults: nobody dies any more, time goes on, and people answer at last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents import api
from agents.models import Approval, Submission
from agents.states import State, Wait
from maintenance import operations, sweep
from maintenance.conf import get_settings
from maintenance.delivery import Delivery
from maintenance.models import ThreadMaintenance

if TYPE_CHECKING:
    from tests.model.ledger_machine import LedgerMachine

MOST_TICKS = 300
MOST_ANSWERS = 150
"""Rounds of answers; each submission has at most four questions."""


def come_to_an_end(machine: LedgerMachine) -> None:
    """First all rests, each submission settled or in a wait that has a name; then people answer, and all is settled."""
    if not Submission.objects.exists():
        return
    operations.release("t", actor="a person", reason="calm")
    rest(machine)
    for row in machine.open_rows():
        assert is_named_wait(row), f"submission {row.queue_sequence} rests as {row.state} and nobody knows why"
    for _ in range(MOST_ANSWERS):
        if not machine.open_rows():
            break
        answer(machine)
        rest(machine)
    left = [(row.queue_sequence, row.state, row.waits_for, row.waits_on) for row in machine.open_rows()]
    assert not left, f"what people could say does not end these: {left}"
    report = api.verify("t", all_settled=True)
    assert report.ok, report.failed
    settled = Submission.objects.filter(state=State.SETTLED).count()
    assert len(machine.outcomes) == settled == Submission.objects.count()


def rest(machine: LedgerMachine) -> None:
    """Lets time go on, with every message delivered, until the thread has no alarm."""
    for _ in range(MOST_TICKS):
        _deliver_all(machine)
        row = ThreadMaintenance.objects.get(pk="t")
        if row.alarm_at is None:
            machine.holds()
            return
        machine.frozen.at = max(machine.frozen.at + get_settings().sweep_interval, row.alarm_at)
        sweep.sweep()
    message = f"the thread does not come to rest: {[row.state for row in machine.open_rows()]}"
    raise AssertionError(message)


def is_named_wait(row: Submission) -> bool:
    """Whether somebody outside has to act first, for this submission or for one before it."""
    head = Submission.objects.exclude(state=State.SETTLED).order_by("queue_sequence")[0]
    asks = {Wait.APPROVAL, Wait.EVENT}
    if row == head:
        return row.state == State.UNKNOWN or (row.state == State.SUSPENDED and row.waits_for in asks)
    return row.state in {State.READY, State.JOINED}


def answer(machine: LedgerMachine) -> None:
    """Everybody who is waited for says something."""
    for approval in Approval.objects.filter(decision=""):
        api.resolve_approval(approval.pk, "approved", reason="at last")
    for _ in Submission.objects.filter(state=State.SUSPENDED, waits_for=Wait.EVENT):
        api.send_event("t", "news", "at last")
    for call in machine.unknown_calls():
        machine.answer(call)


def _deliver_all(machine: LedgerMachine) -> None:
    while arrived := [hint for hint in machine.messages if hint.eta is None or hint.eta <= machine.frozen.at]:
        machine.messages.remove(arrived[0])
        machine.take(Delivery(thread_id="t", seq=arrived[0].seq))
