"""What is owed, by whom it is blocked and for how long: one line for each unsettled submission, oldest first.

Scan-based, never a daemon. The partial index of unsettled submissions answers, so what is settled costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models import Case, Count, Exists, F, Min, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.utils.dateparse import parse_datetime

from agents.errors import AgentInputError
from agents.models import Attempt, CallStatus, Submission, ToolCall, UnknownResolution
from agents.naming import check_thread_id
from agents.operations.authorize import Actor, Operation, authorize
from agents.states import State, Wait
from maintenance import clock

AGING = timedelta(minutes=10)
OVERDUE = timedelta(hours=1)
PAGE = 256
MAX_PAGE = 1_000


class Severity(StrEnum):
    """How old an obligation is, by two thresholds; an age at a threshold has reached it."""

    OK = "ok"
    AGING = "aging"
    OVERDUE = "overdue"


class BlockedOn(StrEnum):
    """Who or what has to move."""

    UNKNOWN = "unknown"
    """A person, about a call."""
    APPROVAL = "approval"
    """A person, about a question."""
    EVENT = "event"
    """Another system."""
    TIMER = "timer"
    """A moment."""
    RETRY = "retry"
    """A moment, after something that did not work."""
    CHILD = "waiting-for-child"
    """Another thread."""
    READY = "ready-aged"
    """Its turn in the queue, or a worker."""
    RUNNING = "running-aged"
    """A worker, or the run that it joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obligation:
    """One unsettled submission."""

    submission_id: UUID
    thread_id: str
    agent: str
    queue_sequence: int
    state: State
    blocked_on: BlockedOn
    waits_on: str
    """Which approval, event or timer."""
    wake_at: datetime | None
    since: datetime
    age_seconds: int
    """Whole seconds since then, cut off, never negative."""
    severity: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Obligations:
    """One page, oldest first."""

    now: datetime
    aging_seconds: int
    overdue_seconds: int
    entries: tuple[Obligation, ...]
    next: str | None
    """Give it as `after` for the next page; `None` if this was the last."""


def obligations(
    *,
    aging: float | timedelta = AGING,
    overdue: float | timedelta = OVERDUE,
    thread_id: str | None = None,
    at_least: Severity | str = Severity.OK,
    after: str | None = None,
    limit: int = PAGE,
    actor: Actor = None,
) -> Obligations:
    """A page of what is owed: of one thread or of all, as old as `at_least` says. Writes nothing; one statement.

    Thresholds are seconds or `timedelta`s. Raises `OperationDenied`, `AgentInputError`, `UnknownThread` for what no
    thread can be called.
    """
    authorize(actor, Operation.SCAN_OBLIGATIONS, thread_id=thread_id)
    thresholds = _thresholds(aging, overdue)
    if thread_id is not None:
        check_thread_id(thread_id)
    if not 1 <= limit <= MAX_PAGE:
        raise AgentInputError(f"a page holds 1 to {MAX_PAGE} entries")
    now = clock.now()
    rows = _aged(_unsettled(thread_id), _severity(at_least), now, thresholds)
    if after is not None:
        rows = rows.filter(_beyond(after))
    page = list(rows.order_by("since", "pk")[: limit + 1])
    entries = tuple(_entry(row, now, thresholds) for row in page[:limit])
    return Obligations(
        now=now,
        aging_seconds=int(thresholds[0].total_seconds()),
        overdue_seconds=int(thresholds[1].total_seconds()),
        entries=entries,
        next=_place(page[limit - 1]) if len(page) > limit else None,
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """How many obligations are of one kind, and how old the oldest of them is, in whole seconds."""

    count: int = 0
    oldest_seconds: int = 0


def tally() -> dict[tuple[BlockedOn, Severity], Tally]:
    """What is owed over all threads, counted by the default thresholds; for metrics, so nobody is asked. One statement.

    What there is none of is left out.
    """
    now = clock.now()
    severity = Case(
        When(since__lte=now - OVERDUE, then=Value(Severity.OVERDUE)),
        When(since__lte=now - AGING, then=Value(Severity.AGING)),
        default=Value(Severity.OK),
    )
    kinds = _unsettled(None).order_by().values("state", "waits_for", severity=severity)
    found: dict[tuple[BlockedOn, Severity], Tally] = {}
    for row in kinds.annotate(count=Count("pk"), oldest=Min("since")):
        key = _blocked_on(State(row["state"]), row["waits_for"]), Severity(row["severity"])
        known = found.get(key, Tally())
        found[key] = Tally(known.count + row["count"], max(known.oldest_seconds, _age(row["oldest"], now)))
    return found


def _unsettled(thread_id: str | None) -> QuerySet[Any]:
    """Unsettled rows, each with the moment since when it stands as it does."""
    answered = UnknownResolution.objects.filter(tool_call=OuterRef("pk"), tries=OuterRef("tries"))
    calls = ToolCall.objects.filter(~Exists(answered), submission_id=OuterRef("pk"), status=CallStatus.UNKNOWN)
    unresolved = Subquery(calls.order_by("updated_at").values("updated_at")[:1])
    attempts = Attempt.objects.filter(submission_id=OuterRef("pk")).order_by("-number")
    # A suspension ends its attempt in the same commit.
    suspended = Subquery(attempts.values("ended_at")[:1])
    since = Case(
        When(state=State.UNKNOWN, then=Coalesce(unresolved, suspended, F("created_at"))),
        When(state=State.SUSPENDED, then=Coalesce(suspended, F("created_at"))),
        default=F("created_at"),
    )
    rows = Submission.objects.exclude(state=State.SETTLED).defer("input").annotate(since=since)
    return rows if thread_id is None else rows.filter(thread_id=thread_id)


def _aged(
    rows: QuerySet[Any], at_least: Severity, now: datetime, thresholds: tuple[timedelta, timedelta]
) -> QuerySet[Any]:
    match at_least:
        case Severity.OK:
            return rows
        case Severity.AGING:
            return rows.filter(since__lte=now - thresholds[0])
        case Severity.OVERDUE:
            return rows.filter(since__lte=now - thresholds[1])


def _age(since: datetime, now: datetime) -> int:
    return max(0, int((now - since).total_seconds()))


def _entry(row: Any, now: datetime, thresholds: tuple[timedelta, timedelta]) -> Obligation:
    age = _age(row.since, now)
    aging, overdue = (threshold.total_seconds() for threshold in thresholds)
    severity = Severity.OVERDUE if age >= overdue else Severity.AGING if age >= aging else Severity.OK
    return Obligation(
        submission_id=row.pk,
        thread_id=row.thread_id,
        agent=row.agent,
        queue_sequence=row.queue_sequence,
        state=State(row.state),
        blocked_on=_blocked_on(State(row.state), row.waits_for),
        waits_on=row.waits_on,
        wake_at=row.wake_at,
        since=row.since,
        age_seconds=age,
        severity=severity,
    )


_WAITS = {
    Wait.APPROVAL: BlockedOn.APPROVAL,
    Wait.EVENT: BlockedOn.EVENT,
    Wait.TIMER: BlockedOn.TIMER,
    Wait.RETRY: BlockedOn.RETRY,
    Wait.CHILD: BlockedOn.CHILD,
}


def _blocked_on(state: State, waits_for: str) -> BlockedOn:
    match state:
        case State.UNKNOWN:
            return BlockedOn.UNKNOWN
        case State.SUSPENDED:
            return _WAITS[Wait(waits_for)]
        case State.ADMITTED | State.READY:
            return BlockedOn.READY
        case _:
            return BlockedOn.RUNNING


def _thresholds(aging: float | timedelta, overdue: float | timedelta) -> tuple[timedelta, timedelta]:
    first, second = _duration(aging), _duration(overdue)
    if not timedelta() <= first <= second:
        raise AgentInputError("the threshold of aging is not negative and not above that of overdue")
    return first, second


def _duration(given: float | timedelta) -> timedelta:
    try:
        return given if isinstance(given, timedelta) else timedelta(seconds=given)
    except (TypeError, ValueError, OverflowError):
        raise AgentInputError("a threshold is a number of seconds or a timedelta") from None


def _severity(given: Severity | str) -> Severity:
    try:
        return Severity(given)
    except ValueError:
        raise AgentInputError(f"a severity is one of {', '.join(Severity)}") from None


def _place(row: Any) -> str:
    return f"{row.since.isoformat()}/{row.pk}"


def _beyond(after: str) -> Q:
    """What comes behind a place: by age first, by id among those of one moment."""
    moment, _, last = after.partition("/")
    try:
        since, pk = parse_datetime(moment), UUID(last)
    except ValueError:
        since = None
    if since is None:
        raise AgentInputError("`after` is what an earlier page gave as `next`")
    return Q(since__gt=since) | Q(since=since, pk__gt=pk)
