"""What `explain` finds out beside the classifier's facts: whom a submission asks, what it called, who tried it.

Plain reads, several statements: on a thread that moves meanwhile, an explanation may be a moment old.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Exists, OuterRef

from agents import canonical
from agents.models import AbortIntent, Approval, Attempt, CallStatus, Submission, ToolCall, UnknownResolution
from agents.recovery.classify import Decision, Facts, classify
from agents.states import Ending, State
from maintenance import clock, owner
from maintenance.errors import bounded
from maintenance.models import OperatorAction, ThreadMaintenance

Row = TypeVar("Row")

MAX_ARGUMENTS = 5
"""Arguments that are named; the rest is only counted."""
MAX_NAME = 40
MAX_REASON = 200
"""Characters of a person's reason that are repeated."""

KINDS = {str: "text", bool: "yes or no", int: "number", float: "number", dict: "object", list: "list"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApproval:
    """A question that a person has not answered."""

    approval_id: UUID
    name: str
    tool: str
    arguments: str
    """Their names and kinds, never a value."""
    requested_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call without a recorded result."""

    call: str
    turn: int
    tool: str
    kind: str
    tries: int
    status: str
    reason: str
    """Why nobody knows what became of it."""
    resolved: bool
    """Somebody has answered; the next pass applies it."""
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Who asked for the end of the submission."""

    author: str
    reason: str
    requested_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """How its attempts went."""

    begun: int = 0
    budget: int
    fruitless: int = 0
    """Ended since the last recorded progress, without having been asked to."""
    lost: int = 0
    """Those of them whose process died."""
    running_since: datetime | None = None
    running_in: str = ""
    """The process that runs it now."""
    last_ended_at: datetime | None = None

    @property
    def left(self) -> int:
        return max(0, self.budget - self.fruitless)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One submission with everything that explains it."""

    facts: Facts
    decision: Decision
    agent: str
    created_at: datetime
    tries: Tries
    host_place: int | None = None
    """Queue sequence of the submission whose run it joined."""
    joined: int = 0
    """Submissions that settle with it."""
    approvals: tuple[OpenApproval, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    abort: Abort | None = None

    @property
    def since(self) -> datetime:
        """Since when it stands as it does, as far as the rows tell."""
        unresolved = [call.since for call in self.calls if call.status == CallStatus.UNKNOWN and not call.resolved]
        if self.facts.state is State.UNKNOWN and unresolved:
            return min(unresolved)
        if self.facts.state is State.SUSPENDED and self.tries.last_ended_at is not None:
            return self.tries.last_ended_at
        return self.tries.running_since or self.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The thread that a submission belongs to, as maintenance sees it."""

    thread_id: str
    now: datetime
    row: ThreadMaintenance | None
    paused_by: OperatorAction | None = None

    @property
    def live_epoch(self) -> int | None:
        """The epoch of the pass that holds the thread now."""
        return self.row.lease_epoch if self.row is not None and self.row.has_live_lease(self.now) else None


@dataclass(slots=True)
class _Beside:
    """What other tables hold about some submissions, by submission."""

    rows: dict[UUID, Submission] = field(default_factory=dict)
    approvals: dict[UUID, list[Approval]] = field(default_factory=dict)
    calls: dict[UUID, list[Any]] = field(default_factory=dict)
    aborts: dict[UUID, list[AbortIntent]] = field(default_factory=dict)
    joined: Counter[UUID] = field(default_factory=Counter)


def around(thread_id: str) -> Around:
    """What holds a thread back or moves it."""
    row = ThreadMaintenance.objects.filter(pk=thread_id).first()
    paused_by = None
    if row is not None and row.paused_at is not None:
        paused_by = OperatorAction.objects.filter(thread_id=thread_id, action="pause").order_by("-id").first()
    return Around(thread_id=thread_id, now=clock.now(), row=row, paused_by=paused_by)


def find_out(facts: Sequence[Facts], where: Around) -> list[Found]:
    """Everything about these submissions of one thread; those that settled meanwhile are left out."""
    beside = _beside([known.submission_id for known in facts])
    return [_found(known, beside, where) for known in facts if known.submission_id in beside.rows]


def named(arguments: str) -> str:
    """The names and kinds of recorded arguments, for sentences: a value may be a secret."""
    value = canonical.parse(arguments)
    if not isinstance(value, dict):
        return "" if value is None else _kind(value)
    shown = [f"{_name(name)}: {_kind(each)}" for name, each in list(value.items())[:MAX_ARGUMENTS]]
    more = [f"and {len(value) - MAX_ARGUMENTS} more"] if len(value) > MAX_ARGUMENTS else []
    return ", ".join([*shown, *more])


def process(text: str) -> str:
    """A process in words."""
    parsed = owner.parse(text)
    if parsed is None:
        return text
    return f"pid {parsed.pid}" + ("" if parsed.machine == owner.machine() else f" on {parsed.machine[:8]}")


def _found(facts: Facts, beside: _Beside, where: Around) -> Found:
    pk = facts.submission_id
    row = beside.rows[pk]
    aborts = beside.aborts.get(pk)
    return Found(
        facts=facts,
        decision=classify(facts),
        agent=row.agent,
        created_at=row.created_at,
        tries=_tries(facts, where),
        host_place=None if row.host is None else row.host.queue_sequence,
        joined=beside.joined[pk],
        approvals=tuple(map(_approval, beside.approvals.get(pk, ()))),
        calls=tuple(map(_call, beside.calls.get(pk, ()))),
        abort=_abort(aborts[0]) if aborts else None,
    )


def _beside(ids: Sequence[UUID]) -> _Beside:
    """One statement for each table, whatever the number of submissions."""
    rows = Submission.objects.filter(pk__in=ids).select_related("host").defer("input", "host__input")
    resolved = UnknownResolution.objects.filter(tool_call=OuterRef("pk"), tries=OuterRef("tries"))
    calls = ToolCall.objects.filter(submission_id__in=ids, status__in=[CallStatus.PREPARED, CallStatus.UNKNOWN])
    approvals = Approval.objects.filter(submission_id__in=ids, decision="").order_by("requested_at", "pk")
    # By thread, because the queue of a thread has an index and hosts have none.
    threads = Submission.objects.filter(pk__in=ids).values("thread_id")
    joined = Submission.objects.filter(thread_id__in=threads, host_id__in=ids, state=State.JOINED)
    return _Beside(
        rows={row.pk: row for row in rows},
        approvals=_grouped(approvals),
        calls=_grouped(calls.defer("arguments").annotate(resolved=Exists(resolved)).order_by("pk")),
        aborts=_grouped(AbortIntent.objects.filter(pk__in=ids)),
        joined=Counter(joined.values_list("host_id", flat=True)),
    )


def _grouped(rows: Iterable[Any]) -> dict[UUID, list[Any]]:
    found: dict[UUID, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.submission_id].append(row)
    return found


def _tries(facts: Facts, where: Around) -> Tries:
    """Two statements for what was begun, which is the head alone; none for what waits behind it."""
    if facts.attempts == 0:
        return Tries(budget=facts.budget)
    rows = Attempt.objects.filter(submission_id=facts.submission_id)
    last = rows.order_by("-number").first()
    runs = last is not None and last.ending == "" and last.epoch == where.live_epoch
    since = rows.filter(began_after__gte=facts.last_progress)
    if last is not None and runs:
        since = since.exclude(pk=last.pk)
    endings = Counter(since.values_list("ending", flat=True))
    free = endings[Ending.YIELDED] + endings[Ending.SUSPENDED]
    return Tries(
        begun=facts.attempts,
        budget=facts.budget,
        fruitless=endings.total() - free,
        # One without an end that does not run has vanished with its process.
        lost=endings[Ending.LOST] + endings[""],
        running_since=last.started_at if last is not None and runs else None,
        running_in=process(last.owner) if last is not None and runs else "",
        last_ended_at=None if last is None else last.ended_at,
    )


def _approval(row: Approval) -> OpenApproval:
    return OpenApproval(
        approval_id=row.pk,
        name=row.name,
        tool=row.tool,
        arguments=named(row.arguments),
        requested_at=row.requested_at,
        expires_at=row.expires_at,
    )


def _call(row: Any) -> OpenCall:
    return OpenCall(
        call=row.call,
        turn=row.turn,
        tool=row.tool,
        kind=row.kind,
        tries=row.tries,
        status=row.status,
        reason=bounded(row.unknown_reason, MAX_REASON),
        resolved=row.resolved,
        since=row.updated_at,
    )


def _abort(row: AbortIntent) -> Abort:
    return Abort(author=row.author, reason=bounded(row.reason, MAX_REASON), requested_at=row.requested_at)


def _name(name: str) -> str:
    """A key that looks like the name of an argument; any other may be data."""
    return name if name.isidentifier() and len(name) <= MAX_NAME else "…"


def _kind(value: Any) -> str:
    return "nothing" if value is None else KINDS.get(type(value), "value")
