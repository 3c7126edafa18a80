"""The transactions that end a pass: finish, failure, and the caught-up pass that begins and ends in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from maintenance import alarm, ceiling, decision, dispatch, failpoints, history, hooks, lease, operations, rows, start
from maintenance.conf import get_settings
from maintenance.delivery import IN_PLACE, Begun
from maintenance.errors import FAIL_PASS, FINISH_PASS, FINISH_PUBLICATION_PASS, alarm_operation
from maintenance.history import ACTIONABLE, CAUGHT_UP, CLEARED, REARMED, Report
from maintenance.ports import REPAIRED, RecoveryReport, Residue
from maintenance.rearm import earliest
from maintenance.rows import Locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What the body of a pass did, for finish."""

    ran: bool
    """Recovery and the head had their turn; otherwise nothing is acknowledged."""
    reports: Sequence[RecoveryReport] = ()
    settled: int = 0
    residue: Residue | None = None
    """What is left, if the settlement's transaction has read that already."""
    finished: Finished | None = None
    """The finish that the settlement's own transaction has committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A pass that ended with a committed finish."""

    report: Report
    next: Begun | None = None
    """The pass that this transaction has begun in place: the caller runs it."""


def finish(begun: Begun, done: Done, *, in_place: bool) -> Finished | None:
    """Decides acknowledgement and slot from what remains, ends the lease. `None`: it was lost, nothing written.

    `in_place`: the caller runs the next pass itself if it is due at once; it is begun right here and no message sent.
    After a lost reply it may be repeated: it then finds the pass that it has begun.
    """
    operation = FINISH_PASS if done.ran else FINISH_PUBLICATION_PASS
    thread_id = begun.lease.thread_id
    failpoints.hit("maintenance:finish:before", thread_id)
    # Race closed: a mutation that commits between the residual scan and the acknowledgement. It waits for this
    # lock, or its generation is newer than the one acknowledged. Asynchronous: losing it leaves the row dirty.
    with alarm_operation(operation), transaction.atomic(durable=True):
        locked = rows.lock(thread_id, operation, relaxed=True)
        if locked is None:
            return None
        if not lease.is_held(locked, begun.lease):
            return _already(locked, begun)
        finished = finish_locked(locked, begun, done, in_place=in_place)
        if finished.next is not None and not hooks.current().may_begin_relaxed:
            rows.commit_synchronously()
    failpoints.hit("maintenance:finish:after", thread_id)
    return finished


def finish_locked(locked: Locked, begun: Begun, done: Done, *, in_place: bool) -> Finished:
    """Finish, inside a transaction that has locked the row and found `begun`'s lease on it."""
    row = locked.row
    # A statement of its own, begun after the lock: a scan from before it could miss what a mutation just committed.
    residue = _scan(row.thread_id, done) if done.ran else None
    if residue is not None:
        row.nonterminal, row.timer_at = residue.nonterminal, residue.next_due
    seen = _seen(locked, begun, done, residue)
    decided = decision.decide(seen, get_settings())
    _apply(locked, decided)
    report = Report(
        phase=ACTIONABLE if done.ran else CAUGHT_UP,
        recovered=len(done.reports),
        settled=done.settled,
        nonterminal=row.nonterminal,
        alarm=CLEARED if row.alarm_at is None else REARMED,
    )
    history.record(
        locked,
        outcome="ran",
        trigger=begun.trigger,
        due_at=begun.due_at,
        generation=begun.generation,
        report=report,
        still_due=seen.is_still_due,
    )
    following = _hand_on(locked, begun, in_place=in_place)
    return Finished(report=report, next=following)


def _already(locked: Locked, begun: Begun) -> Finished | None:
    """The finish that has committed although its reply was lost: the pass that it began in place says so."""
    following = _begun_in_place(locked, begun)
    return None if following is None else Finished(report=history.last_report(locked.row), next=following)


def _begun_in_place(locked: Locked, begun: Begun) -> Begun | None:
    """The pass that holds the row because `begun` has begun it in its place, if there is one."""
    held = lease.held_by(locked, begun.lease.successor)
    if not lease.is_held(locked, held):
        return None
    return start.begun(locked, held, trigger=IN_PLACE, due_at=locked.row.lease_started_at)


def _scan(thread_id: str, done: Done) -> Residue:
    return done.residue or hooks.current().ledger.scan_nonterminal(thread_id, done.reports)


def _seen(locked: Locked, begun: Begun, done: Done, residue: Residue | None) -> decision.Seen:
    row, now = locked.row, locked.now
    active = row.has_mutation_in_flight(now)
    return decision.Seen(
        now=now,
        slot=row.alarm_at,
        dirty=row.dirty,
        processed=row.processed,
        generation=begun.generation,
        raced=active or (begun.raced and residue is not None),
        residue=residue,
        settled=done.settled > 0 or begun.lease.progressed,
        repaired=any(report.disposition == REPAIRED for report in done.reports),
        stalls=row.stalls,
        pending=earliest(row.timer_at, hooks.current().pending_deadline(row.thread_id)),
    )


def _apply(locked: Locked, decided: decision.Decision) -> None:
    row = locked.row
    row.processed, row.stalls = decided.processed, decided.stalls
    row.failures = row.starts_since_finish = 0
    alarm.replace(row, decided.slot)


def _hand_on(locked: Locked, begun: Begun, *, in_place: bool) -> Begun | None:
    """Begins the next pass in place of this one, if it is due; otherwise lets the thread go."""
    row = locked.row
    due = row.alarm_at is not None and row.alarm_at <= locked.now
    if not (in_place and due) or row.paused_at or row.quarantined_at or ceiling.reached(locked):
        _let_go(locked)
        return None
    following = start.in_place(locked, begun.lease.successor)
    locked.save()
    return following


def _let_go(locked: Locked) -> None:
    """Releases the lease and hands the slot over."""
    failpoints.hit("lease:release:before", locked.row.thread_id)
    lease.release(locked)
    hint = dispatch.mark(locked)
    locked.save()
    dispatch.after_commit(hint)


def caught_up_at_once(locked: Locked, pending: datetime | None, *, trigger: str, due_at: datetime | None) -> Finished:
    """A pass over a thread that owes nothing: no lease, no ledger, no log; the slot is decided right here.

    `pending` is the ports' earliest deadline, read after the row lock.
    """
    row, now = locked.row, locked.now
    lease.release(locked)
    decided = decision.decide(
        decision.Seen(
            now=now,
            slot=row.alarm_at,
            dirty=row.dirty,
            processed=row.processed,
            generation=row.dirty,
            raced=row.has_mutation_in_flight(now),
            residue=None,
            settled=False,
            repaired=False,
            stalls=row.stalls,
            pending=earliest(row.timer_at, pending),
        ),
        get_settings(),
    )
    _apply(locked, decided)
    alarm_is = CLEARED if row.alarm_at is None else REARMED
    report = Report(phase=CAUGHT_UP, recovered=0, settled=0, nonterminal=row.nonterminal, alarm=alarm_is)
    history.record(locked, outcome="ran", trigger=trigger, due_at=due_at, generation=row.dirty, report=report)
    _let_go(locked)
    return Finished(report=report)


def fail(begun: Begun, error: str, *, outcome: str, backoff: bool, park: bool = False) -> bool:
    """Records a failed, interrupted or parked pass and releases the lease. `False`: it was lost, nothing written.

    With `backoff` the slot is replaced by the retry time; without (the worker drains) it stays at begin's fallback,
    so that another worker goes on at once. With `park` the thread is paused, and due as soon as it is resumed. Commits
    synchronously.
    """
    thread_id = begun.lease.thread_id
    # Race closed: a takeover; its lease must not be released by us, nor its thread paused.
    with alarm_operation(FAIL_PASS), transaction.atomic(durable=True):
        locked = rows.lock(thread_id, FAIL_PASS)
        held = None if locked is None else _what_is_held(locked, begun)
        if locked is None or held is None:
            return False
        row, begun = locked.row, held
        row.starts_since_finish = 0
        if backoff:
            row.failures += 1
            alarm.replace(row, decision.retry_at(_failed(locked, begun), get_settings()))
        elif park:
            alarm.keep_earlier(row, locked.now)
            operations.park(locked, error)
        else:
            alarm.keep_earlier(row, locked.now + get_settings().minimum)
        history.record(
            locked,
            outcome=outcome,
            trigger=begun.trigger,
            due_at=begun.due_at,
            generation=begun.generation,
            error=error,
        )
        _let_go(locked)
        return True


def _what_is_held(locked: Locked, begun: Begun) -> Begun | None:
    """`begun`, or the pass that it has begun in place of itself, if nobody heard of that commit."""
    return begun if lease.is_held(locked, begun.lease) else _begun_in_place(locked, begun)


def _failed(locked: Locked, begun: Begun) -> decision.Failed:
    return decision.Failed(
        now=locked.now,
        failures=locked.row.failures,
        progressed=begun.lease.progressed,
        mutated=locked.row.dirty != begun.generation,
        timer_at=locked.row.timer_at,
    )
