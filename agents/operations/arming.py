"""Whether a thread that owes something would ever be looked at again: work that can go on is armed, timers too."""

from __future__ import annotations

from agents.ledger import ThreadLedger
from agents.recovery.classify import classify
from agents.recovery.evidence import gather
from maintenance import clock
from maintenance.models import ThreadMaintenance
from maintenance.ports import RecoveryReport, Residue

MOVED = "the thread moved while it was looked at"
HELD = "a pass holds the thread; its finish decides what is armed"


def problem(thread_id: str) -> str:
    """What is left without an alarm; empty if all is well. Raises `Moved` if it cannot be told now."""
    before = _row(thread_id)
    left = _left(thread_id)
    if left is None:
        return ""
    after = _row(thread_id)
    if _stamp(before) != _stamp(after):
        raise Moved(MOVED)
    if after is None:
        return "work is owed, and maintenance does not know the thread"
    if left.autonomous and after.alarm_at is None:
        return "work can go on, and no alarm is armed"
    if left.next_due is None:
        return ""
    if after.has_live_lease(clock.now()):
        raise Moved(HELD)
    if after.alarm_at is None or after.alarm_at > left.next_due:
        return f"something is due at {left.next_due.isoformat()}, and no alarm comes before"
    return ""


class Moved(Exception):
    """Nothing can be said without stopping the thread."""


def _left(thread_id: str) -> Residue | None:
    """What a finish would find now, had recovery just reported; `None` if nothing is owed."""
    facts = gather(thread_id)
    reports = [
        RecoveryReport(submission_id=str(known.submission_id), decision=classify(known), disposition="")
        for known in facts
    ]
    return ThreadLedger().scan_nonterminal(thread_id, reports) if facts else None


def _row(thread_id: str) -> ThreadMaintenance | None:
    return ThreadMaintenance.objects.filter(pk=thread_id).first()


def _stamp(row: ThreadMaintenance | None) -> tuple[object, ...]:
    """Changes with every mutation and every pass."""
    return () if row is None else (row.dirty, row.processed, row.alarm_at, row.alarm_seq, row.lease_token)
