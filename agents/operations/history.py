"""What a log says of calls, questions, events, joins and aborts: the side that the rows are compared with.

Filled in one reading; holds a few words for each call, question and event of the thread, never a payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.models import CallStatus
from agents.records import (
    AbortRequested,
    ApprovalDecided,
    ApprovalRequested,
    EventAwaited,
    EventReceived,
    FollowupsTaken,
    Payload,
    RetryScheduled,
    SubmissionSettled,
    TimerSet,
    ToolCallPrepared,
    ToolCallResolved,
    ToolCallSettled,
    ToolCallUnknown,
    UserInput,
)
from agents.states import Outcome, Wait

CallKey = tuple[str, int, str]
"""Submission, turn and name of a call."""
Question = tuple[str, str]
"""Submission and name of an approval."""
EventKey = tuple[str, str]
"""Name and key of an event."""


@dataclass(slots=True)
class Call:
    """What the log says of one call, over all its tries."""

    tool: str = ""
    kind: str = ""
    digest: str = ""
    tries: int = 0
    status: str = ""
    last: int = 0
    """Sequence of the last record about it."""


@dataclass(slots=True)
class Asked:
    """What the log says of one approval."""

    digest: str
    last: int
    decision: str = ""
    resolver: str = ""


@dataclass(slots=True)
class Ended:
    """One settlement record."""

    submission: str
    outcome: Outcome
    host: str | None
    sequence: int


@dataclass(slots=True)
class History:
    """Everything in a log that a row repeats or answers."""

    inputs: list[tuple[str, int]] = field(default_factory=list)
    """Submissions whose input was recorded, with its sequence, in the order of the log."""
    settlements: list[Ended] = field(default_factory=list)
    calls: dict[CallKey, Call] = field(default_factory=dict)
    approvals: dict[Question, Asked] = field(default_factory=dict)
    received: list[tuple[EventKey, str, int]] = field(default_factory=list)
    """Events that a run took: which, whose run, at which sequence."""
    taken: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Submissions that joined a run: its host, at which sequence."""
    aborts: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Submissions whose abort took effect: its author, at which sequence."""
    awaited: set[tuple[str, str, str]] = field(default_factory=set)
    """Submission, kind and name of everything that a run ever waited for."""
    left_open: list[str] = field(default_factory=list)
    """Calls without an outcome in runs that completed."""
    _open: dict[str, set[CallKey]] = field(default_factory=dict)
    """Calls of runs that have not settled, prepared and without a further record."""

    def take(self, content: Payload, sequence: int) -> None:
        """Reads one record."""
        match content:
            case UserInput():
                self.inputs.append((content.submission, sequence))
            case ToolCallPrepared() | ToolCallSettled() | ToolCallUnknown() | ToolCallResolved():
                self._take_call(content, sequence)
            case ApprovalRequested() | ApprovalDecided():
                self._take_approval(content, sequence)
            case EventReceived() if content.key is not None:
                self.received.append(((content.event, content.key), _submission(content.run), sequence))
            case FollowupsTaken():
                self.taken.update({one: (_submission(content.run), sequence) for one in content.submissions})
            case AbortRequested():
                self.aborts[content.submission] = (content.author, sequence)
            case SubmissionSettled():
                self._take_settlement(content, sequence)
            case _:
                self._take_wait(content)

    def _take_call(
        self, content: ToolCallPrepared | ToolCallSettled | ToolCallUnknown | ToolCallResolved, sequence: int
    ) -> None:
        key = (_submission(content.run), content.turn, content.call)
        call = self.calls.setdefault(key, Call())
        call.last = sequence
        match content:
            case ToolCallPrepared():
                call.tool, call.kind, call.digest = content.tool, content.kind, content.digest
                call.tries, call.status = content.tries, CallStatus.PREPARED
            case ToolCallSettled():
                call.status = CallStatus.SETTLED
            case ToolCallUnknown():
                call.status = CallStatus.UNKNOWN
            case ToolCallResolved(resolution="never-started" | "safe-retry"):
                call.status = CallStatus.PERMITTED
        if call.status == CallStatus.PREPARED:
            self._open.setdefault(key[0], set()).add(key)
        else:
            self._open.get(key[0], set()).discard(key)

    def _take_approval(self, content: ApprovalRequested | ApprovalDecided, sequence: int) -> None:
        key = (_submission(content.run), content.name)
        if isinstance(content, ApprovalRequested):
            self.approvals[key] = Asked(digest=content.digest, last=sequence)
            self.awaited.add((key[0], Wait.APPROVAL, content.name))
            return
        asked = self.approvals.setdefault(key, Asked(digest="", last=sequence))
        asked.decision, asked.resolver, asked.last = content.decision, content.resolver, sequence

    def _take_wait(self, content: Payload) -> None:
        match content:
            case TimerSet():
                self.awaited.add((_submission(content.run), Wait.TIMER, content.name))
            case EventAwaited():
                self.awaited.add((_submission(content.run), Wait.EVENT, content.event))
            case RetryScheduled():
                self.awaited.add((_submission(content.run), Wait.RETRY, content.error_tag[:200]))

    def _take_settlement(self, content: SubmissionSettled, sequence: int) -> None:
        self.settlements.append(Ended(content.submission, content.outcome, content.host, sequence))
        left = sorted(self._open.pop(content.submission, ()))
        if content.outcome == Outcome.COMPLETED:
            self.left_open += [f"call {key[2]!r} of {key[0]}" for key in left]


def _submission(run: str) -> str:
    """The submission of a run."""
    return run.removeprefix("run:")
