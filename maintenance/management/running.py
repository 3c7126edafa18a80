"""`maintenance pass` and `sweep`: passes in this process, and hand-overs to the broker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import Q

from maintenance import clock, drain, operations, passes, reaper, renewal, status, sweep, wave
from maintenance.conf import get_settings
from maintenance.delivery import FORCED, Delivery, Outcome
from maintenance.errors import WakefulError
from maintenance.management.answers import Answer, Exit, unknown_thread
from maintenance.models import ThreadMaintenance
from maintenance.passes import Result
from maintenance.wording import counted

Ran = list[tuple[str, Result]]
"""Threads and what came of their passes, in order."""

PAGE = 500
DEFAULT_LIMIT = 1_000
"""Passes of one command without `--limit`: cron comes again, and a thread that never rests must not keep it."""

TOLD_TO_STOP = "because it was told to"

EXITS = {
    Outcome.RAN: Exit.OK,
    Outcome.UNKNOWN_THREAD: Exit.UNKNOWN_THREAD,
    Outcome.BUSY: Exit.BUSY,
    Outcome.PAUSED: Exit.PAUSED,
    Outcome.QUARANTINED: Exit.PAUSED,
    Outcome.PARKED: Exit.PAUSED,
    Outcome.CLEARED: Exit.NOT_DUE,
    Outcome.EARLY: Exit.NOT_DUE,
    Outcome.SUPERSEDED: Exit.NOT_DUE,
}
"""Every other outcome is a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Force:
    """Who overrides what holds a thread back, and why."""

    actor: str
    reason: str


@contextmanager
def in_this_process() -> Iterator[None]:
    """Lets a SIGTERM end the running pass at its next safe boundary, and ends the helper threads afterwards."""
    before = signal.signal(signal.SIGTERM, lambda *_: drain.request())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        renewal.stop()
        wave.stop()


def run_one(thread_id: str, *, force: Force | None) -> Answer:
    """One pass of one thread, in this process, with the lease and the limits of any pass."""
    result = _forced(thread_id, force) if force else _deliver(thread_id, force=False)
    if result.outcome is Outcome.UNKNOWN_THREAD:
        return unknown_thread(thread_id)
    return Answer(
        code=EXITS.get(result.outcome, Exit.FAILED), lines=[_line(thread_id, result)], data=_data(thread_id, result)
    )


def run_due(limit: int | None) -> Answer:
    """Passes of what is due, earliest first, until nothing is due or the limit is reached. Needs no broker.

    A thread whose pass ends with more to do at once is taken again; one whose pass does not end well is not.
    """
    most, ran, given_up = limit or DEFAULT_LIMIT, Ran(), set[str]()
    while len(ran) < most and (page := _due_page(given_up, most - len(ran))):
        for thread_id in page:
            if drain.requested():
                return _told(ran, what="due", left=TOLD_TO_STOP)
            result = _deliver(thread_id, force=False)
            ran.append((thread_id, result))
            if result.outcome is not Outcome.RAN:
                given_up.add(thread_id)
    return _told(ran, what="due", left=f"at the limit of {most}" if _due_page(given_up, 1) else "")


def run_dirty(limit: int | None, *, force: Force | None) -> Answer:
    """A pass of every dirty thread, whatever its deadline; of paused and quarantined ones only by force."""
    most, ran = limit or DEFAULT_LIMIT, Ran()
    for thread_id in _dirty_threads(held_too=force is not None):
        if len(ran) == most or drain.requested():
            return _told(ran, what="dirty", left=TOLD_TO_STOP if drain.requested() else f"at the limit of {most}")
        ran.append((thread_id, _forced(thread_id, force) if force else _deliver(thread_id, force=True)))
    return _told(ran, what="dirty", left="")


def hand_over() -> Answer:
    """What a worker's timer does: releases the leases of dead processes, hands what is due to the broker."""
    reaped = reaper.reap()
    handed = batch = sweep.sweep()
    while batch == get_settings().sweep_batch:
        batch = sweep.sweep()
        handed += batch
    # A refused hint is unmarked. (A mark that is merely old may belong to a worker that goes on in place.)
    left = ThreadMaintenance.objects.filter(status.due(clock.now()), hint_seq__isnull=True).count()
    lines = [f"Handed over {counted(handed, 'thread', 'threads')}.", f"Released {counted(reaped, 'lease', 'leases')}."]
    if left:
        lines.append(
            f"The broker did not take {counted(left, 'due thread', 'due threads')}. "
            "Look at `maintenance doctor`; `maintenance sweep --inline` runs them here, without the broker."
        )
    return Answer(
        code=Exit.FAILED if left else Exit.OK,
        lines=lines,
        data={"handed_over": handed, "reaped": reaped, "not_taken": left},
    )


def _told(ran: Ran, *, what: str, left: str) -> Answer:
    failed = [(thread_id, result) for thread_id, result in ran if _is_failure(result)]
    lines = [f"{counted(len(ran), 'pass', 'passes')} of {what} threads, {len(failed)} failed."]
    lines += [_line(thread_id, result) for thread_id, result in failed]
    if left:
        lines.append(f"Stopped {left}; run the command again for the rest.")
    return Answer(
        code=Exit.FAILED if failed else Exit.OK,
        lines=lines,
        data={
            "passes": [_data(thread_id, result) for thread_id, result in ran],
            "count": len(ran),
            "failed": len(failed),
            "stopped_early": bool(left),
        },
    )


def _is_failure(result: Result) -> bool:
    return result.outcome in {Outcome.FAILED, Outcome.INTERRUPTED, Outcome.LEASE_LOST}


def _forced(thread_id: str, force: Force) -> Result:
    """Written down before it runs: the pass may end this process."""
    # A thread without a row is held back by nothing; an unknown one has nothing to be written down.
    if ThreadMaintenance.objects.filter(pk=thread_id).exists():
        try:
            operations.note_forced_pass(thread_id, actor=force.actor, reason=force.reason)
        except WakefulError as error:
            return Result(outcome=Outcome.FAILED, error=error.message, failed=True)
    return _deliver(thread_id, force=True)


def _deliver(thread_id: str, *, force: bool) -> Result:
    trigger = FORCED if force else "command"
    return passes.deliver(Delivery(thread_id=thread_id, trigger=trigger, forced=force))


def _due_page(given_up: set[str], most: int) -> list[str]:
    """The threads that are due now, earliest first, without those that this run has given up."""
    due = ThreadMaintenance.objects.filter(status.due(clock.now())).order_by("alarm_at")
    found = due.values_list("thread_id", flat=True)[: min(most, PAGE) + len(given_up)]
    return [thread_id for thread_id in found if thread_id not in given_up][:most]


def _dirty_threads(*, held_too: bool) -> Iterator[str]:
    held = Q() if held_too else ~(status.PAUSED | status.QUARANTINED)
    after = ""
    while True:
        dirty = ThreadMaintenance.objects.filter(status.DIRTY & held, pk__gt=after).order_by("pk")
        page = list(dirty.values_list("thread_id", flat=True)[:PAGE])
        if not page:
            return
        yield from page
        after = page[-1]


def _data(thread_id: str, result: Result) -> dict[str, Any]:
    return {
        "thread": thread_id,
        "outcome": str(result.outcome),
        "report": None if result.report is None else asdict(result.report),
        "error": result.error,
    }


def _line(thread_id: str, result: Result) -> str:
    match result.outcome:
        case Outcome.RAN if result.report is not None:
            report = result.report
            return (
                f"{thread_id}: ran ({report.phase}), settled {report.settled}, recovered {report.recovered}, "
                f"{report.nonterminal} unsettled left, alarm {report.alarm}."
            )
        case Outcome.BUSY:
            return f"{thread_id}: busy, another pass holds it and will see what is new."
        case Outcome.PAUSED | Outcome.QUARANTINED:
            return (
                f"{thread_id}: paused or in quarantine. `maintenance resume` or `release` lets it go on, "
                "`maintenance pass --force --reason …` runs it once."
            )
        case Outcome.PARKED:
            why = f": {result.error}" if result.error else ""
            return f"{thread_id}: parked, it waits for a person{why}. `maintenance resume` lets it go on."
        case Outcome.EARLY | Outcome.CLEARED | Outcome.SUPERSEDED:
            return (
                f"{thread_id}: not due ({result.outcome}). `maintenance pass --force --reason …` runs it all the same."
            )
    return f"{thread_id}: {result.outcome}: {result.error or 'no detail'}"
