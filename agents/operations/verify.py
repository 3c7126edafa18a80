"""Checks what is stored for one thread against the invariants: the log by itself, the rows against the log, the alarm.

Rows are read before the log, so work that goes on meanwhile can only have left more in the log than the rows say.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from agents import log
from agents.naming import check_thread_id
from agents.operations import agreement, arming, stored
from agents.operations.agreement import Problems
from agents.operations.arming import Moved
from agents.operations.audit import LogAudit, lines
from agents.operations.authorize import Actor, Operation, authorize
from agents.operations.stored import Row
from maintenance.models import ThreadMaintenance


class Status(StrEnum):
    """How a check stands."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One invariant; `detail` says what is wrong, or why it was skipped."""

    name: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Every check of one thread. A skipped check is no failure."""

    thread_id: str
    records: int
    submissions: int
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.status is not Status.FAILED for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.status is Status.FAILED]


EPOCH_ORDER = "epoch-order"
LOG_CHECKS = ("schema-round-trip", "record-identity", "sequence-contiguity", "digest-chain", EPOCH_ORDER)
ARMED = "work-is-armed"
ALL_SETTLED = "all-settled"
CHECKPOINTS = Check(name="checkpoint-binding", status=Status.SKIPPED, detail="no checkpoints are stored")


def verify(thread_id: str, *, all_settled: bool = False, actor: Actor = None) -> Report:
    """Checks one thread; with `all_settled`, also that it owes nothing. Read-only.

    Raises `OperationDenied`, `UnknownThread`.
    """
    authorize(actor, Operation.VERIFY, thread_id=thread_id)
    check_thread_id(thread_id)
    rows = stored.read(thread_id, still=log.tail_of(thread_id).sequence)
    tail = log.tail_of(thread_id)
    problems: Problems = defaultdict(list)
    audit = LogAudit(problems)
    for line in lines(thread_id, tail.sequence):
        audit.take(line)
    audit.close(tail)
    _check_epoch(thread_id, audit.epoch, problems)
    agreement.compare(rows, audit.history, problems)
    checks = [_check(name, problems) for name in (*LOG_CHECKS, *agreement.CHECKS)]
    checks.append(_armed(thread_id))
    if all_settled:
        checks.append(_all_settled(rows.rows))
    return Report(thread_id=thread_id, records=audit.count, submissions=len(rows.rows), checks=(*checks, CHECKPOINTS))


def _check_epoch(thread_id: str, newest: int, problems: Problems) -> None:
    """The lease grows with every pass, so no pass can have written with an epoch that it has not reached."""
    reached = ThreadMaintenance.objects.filter(pk=thread_id).values_list("lease_epoch", flat=True).first()
    if reached is not None and reached < newest:
        problems[EPOCH_ORDER].append(f"the log has a batch of epoch {newest}, the thread's lease is at {reached}")


def _armed(thread_id: str) -> Check:
    try:
        found = arming.problem(thread_id)
    except Moved as moved:
        return Check(name=ARMED, status=Status.SKIPPED, detail=str(moved))
    return Check(name=ARMED, status=Status.FAILED if found else Status.PASSED, detail=found)


MAX_DETAIL = 4_096


def _check(name: str, problems: Problems) -> Check:
    found = problems[name]
    if not found:
        return Check(name=name, status=Status.PASSED)
    return Check(name=name, status=Status.FAILED, detail="; ".join(found)[:MAX_DETAIL])


def _all_settled(rows: list[Row]) -> Check:
    """An empty queue fails too: nothing was accepted, so nothing can have been settled."""
    left = [row for row in rows if not row.is_settled]
    if rows and not left:
        return Check(name=ALL_SETTLED, status=Status.PASSED)
    detail = f"{len(left)} of {len(rows)} submissions are not settled" if rows else "there are no submissions"
    return Check(name=ALL_SETTLED, status=Status.FAILED, detail=detail)
