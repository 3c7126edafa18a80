"""What the door of agents raises. One family with maintenance; every text is safe to show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from maintenance.errors import OwnershipLost, RuntimeFailed, ThreadParked, WakefulError, bounded

MAX_TAG = 256
MAX_FAILURE = 16_384
"""Longest message of a recorded failure, in characters."""


class UnknownAgent(WakefulError):
    """No agent of that name is declared in this process."""

    def __init__(self, name: str, suggestions: Sequence[str] = ()) -> None:
        self.name = name
        self.suggestions = tuple(suggestions)
        hint = f"; did you mean {' or '.join(repr(other) for other in suggestions)}?" if suggestions else ""
        super().__init__(f"no agent named {bounded(name, 200)!r} is declared{hint}")


class DuplicateAgent(WakefulError):
    """Two agents were declared under one name."""


class AgentInputError(WakefulError):
    """An argument of `submit` does not fit; nothing was written."""


class AdmissionConflict(WakefulError):
    """The idempotency key stands for another payload or another agent; nothing was written."""

    def __init__(self, *, thread_id: str, principal: str, key: str, existing: str, attempted: str) -> None:
        self.thread_id, self.principal, self.key = thread_id, principal, key
        self.existing, self.attempted = existing, attempted
        super().__init__(
            f"key {bounded(key, 200)!r} of thread {bounded(thread_id, 200)!r} stands for {existing}, "
            f"not for {attempted}"
        )


class AdmissionLimitExceeded(WakefulError):
    """The submission is larger than allowed, or the thread owes too much; nothing was written."""

    def __init__(self, *, limit: str, actual: int, maximum: int) -> None:
        self.limit, self.actual, self.maximum = limit, actual, maximum
        super().__init__(f"{limit}: {actual} where at most {maximum} is allowed")


class AdmissionUncertain(WakefulError):
    """The database failed while it accepted a submission; the same call with the same key settles the question."""


class UnknownSubmission(WakefulError):
    """There is no such submission."""


class UnknownThread(WakefulError):
    """There is no such thread."""


class NotSettledInTime(WakefulError, TimeoutError):
    """The submission is not settled yet; it is still owed and will be."""


class AppendConflict(RuntimeFailed):
    """The log refused a batch; nothing of it is visible.

    `reason`: `batch-digest` (the batch id stands for other content), `tail` (the log has gone on), or
    `record-identity` (a record id is taken).
    """

    BATCH_DIGEST = "batch-digest"
    TAIL = "tail"
    RECORD_IDENTITY = "record-identity"

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"append refused ({reason}): {message}")


class BindingMissing(RuntimeFailed):
    """The head's agent is not declared in this worker; the submission waits for one that has it."""


class StateConflict(RuntimeFailed):
    """A row was not in a state from which this transition may start; nothing was written."""


class AbortRefused(WakefulError):
    """There is nothing that this abort could end (see the message); nothing was written."""


class UnknownApproval(WakefulError):
    """There is no such approval."""


class ApprovalConflict(WakefulError):
    """The approval is decided otherwise, has expired, or is about something else; nothing was written."""


class ApprovalDenied(WakefulError):
    """A person said no, or nobody said yes in time; the call was not made. A handler may catch it."""


class EventConflict(WakefulError):
    """The event's key stands for another payload; nothing was written."""


class EventTimedOut(WakefulError):
    """The event that a handler waited for did not arrive in time. A handler may catch it."""


class RetryLater(WakefulError):
    """Raised by a handler that cannot go on now: it is tried again, not before `after` (seconds, or a `timedelta`).

    Up to a fifth is added to `after`, so that those who were turned away together do not come back in one instant.
    Counts against the retry budget of the submission; each recorded progress refills it.
    """

    def __init__(self, message: str, *, after: float | timedelta | None = None, tag: str = "RetryLater") -> None:
        self.after = after if after is None or isinstance(after, timedelta) else timedelta(seconds=after)
        self.tag = bounded(tag, MAX_TAG) or "RetryLater"
        super().__init__(message)


class NeedsPerson(ThreadParked):
    """Raised by a handler that no further try can help (an empty balance, a revoked key): its thread is parked.

    The thread is paused with this text as the reason until a person resumes it; then the run goes on after its last
    record. Counts against no budget and adds nothing to the log. A tool that raises it says that it had no effect.
    """


class AgentFailure(WakefulError):
    """Raised by a handler on purpose: the submission is settled as failed with exactly this text."""

    def __init__(self, message: str, *, tag: str = "AgentFailure") -> None:
        self.tag = bounded(tag, MAX_TAG) or "AgentFailure"
        super().__init__(message)
        self.message = bounded(message, MAX_FAILURE)


class StepError(WakefulError):
    """A durable step was used in a way that cannot be recorded (see the message)."""


class UnknownTool(WakefulError):
    """No tool of that name is declared in this process; nothing was written."""

    def __init__(self, name: str, suggestions: Sequence[str] = ()) -> None:
        self.name = name
        self.suggestions = tuple(suggestions)
        hint = f"; did you mean {' or '.join(repr(other) for other in suggestions)}?" if suggestions else ""
        super().__init__(f"no tool named {bounded(name, 200)!r} is declared{hint}")


class DuplicateTool(WakefulError):
    """Two tools were declared under one name."""


class CallRefused(WakefulError):
    """A tool call cannot be made or recorded like that (see the message); nothing was written, nothing ran."""


class BudgetExhausted(WakefulError):
    """The run has used up what it may do; nothing was written, nothing ran."""


class ToolFailure(WakefulError):
    """Raised by a tool on purpose: the call ended, and this text is recorded as its failure."""

    def __init__(self, message: str, *, tag: str = "ToolFailure") -> None:
        self.tag = bounded(tag, MAX_TAG) or "ToolFailure"
        super().__init__(message)
        self.message = bounded(message, MAX_FAILURE)


class OutcomeUnknown(WakefulError):
    """Raised by a tool that cannot tell whether it had its effect: its request was sent, no answer came."""


class ToolFailed(WakefulError):
    """A tool call failed; raised to the handler when it happened and again at every replay, from the record."""

    def __init__(self, *, tool: str, call: str, tag: str, reason: str) -> None:
        self.tool, self.call, self.tag, self.reason = tool, call, tag, reason
        super().__init__(f"call {call!r} of tool {tool!r} failed: {reason}")


class CallNotUnknown(WakefulError):
    """There is no such unknown call, so nothing is to be resolved; nothing was written."""


class UnknownResolutionConflict(WakefulError):
    """The call has been resolved otherwise; that resolution stands, nothing was written."""


class RetryRefused(WakefulError):
    """A retry would change nothing until a person has spoken; nothing was written.

    `refusal`: `settled`, `await-unknown-resolution` or `await-approval-decision`.
    """

    def __init__(self, refusal: str, message: str) -> None:
        self.refusal = refusal
        super().__init__(f"retry refused ({refusal}): {message}")


__all__ = [
    "MAX_FAILURE",
    "MAX_TAG",
    "AbortRefused",
    "AdmissionConflict",
    "AdmissionLimitExceeded",
    "AdmissionUncertain",
    "AgentFailure",
    "AgentInputError",
    "AppendConflict",
    "ApprovalConflict",
    "ApprovalDenied",
    "BindingMissing",
    "BudgetExhausted",
    "CallNotUnknown",
    "CallRefused",
    "DuplicateAgent",
    "DuplicateTool",
    "EventConflict",
    "EventTimedOut",
    "NeedsPerson",
    "NotSettledInTime",
    "OutcomeUnknown",
    "OwnershipLost",
    "RetryLater",
    "RetryRefused",
    "RuntimeFailed",
    "StateConflict",
    "StepError",
    "ToolFailed",
    "ToolFailure",
    "UnknownAgent",
    "UnknownApproval",
    "UnknownResolutionConflict",
    "UnknownSubmission",
    "UnknownThread",
    "UnknownTool",
    "WakefulError",
]
