"""What a log can hold: the families of records, their payloads by version, and their deterministic ids.

Ids are derived from what a record is about, so that whoever repeats a write after a crash writes the same one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from agents import canonical
from agents.canonical import Json
from agents.errors import MAX_FAILURE, MAX_TAG
from agents.states import Outcome

SubmissionId = uuid.UUID | str


def _as_json(value: object) -> Json:
    return canonical.encode(value)


AnyJson = Annotated[Json, PlainValidator(_as_json)]
"""A field of arbitrary JSON, held as canonical text, so that large values are neither parsed nor encoded twice."""


class Payload(BaseModel):
    """The content of a record. A changed payload is a new version; old ones stay readable."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    family: ClassVar[str]
    version: ClassVar[int] = 1

    def text(self) -> Json:
        """Its canonical text; members that are absent are left out."""
        return canonical.compose({name: _plain(value) for name, value in self if value is not None})


class Failure(BaseModel):
    """Why a submission failed: bounded, redacted, and nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error_tag: str = Field(min_length=1, max_length=MAX_TAG)
    message: str = Field(max_length=MAX_FAILURE)


class ThreadCreated(Payload):
    """Always the first record of a log."""

    family = "thread-created"
    thread: str
    agent: str
    """The agent of the submission that made the thread."""


class UserInput(Payload):
    """A submission's input became part of a run: its own, or that of the host which it joined."""

    family = "user-input"
    submission: str
    kind: Literal["user", "steering"]
    run: str
    agent: str
    input: AnyJson


class StepSettled(Payload):
    """A durable step of a run has its result. The body may have run more than once, the record exists once."""

    family = "step-settled"
    run: str
    name: str
    attempt: int
    output: AnyJson


class SubmissionSettled(Payload):
    """The one outcome of a submission."""

    family = "submission-settled"
    submission: str
    receipt: str
    outcome: Outcome
    run: str | None = None
    """Absent when its input never became part of a run."""
    result: Annotated[Json | None, PlainValidator(_as_json)] = None
    failure: Failure | None = None
    host: str | None = None
    """The submission with whose run it settled; its result is the host's, and not repeated."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> SubmissionSettled:
        expected = {
            Outcome.COMPLETED: (self.host is None, False),
            Outcome.FAILED: (False, True),
            Outcome.ABORTED: (False, False),
        }[self.outcome]
        if (self.result is not None, self.failure is not None) != expected:
            message = "completed carries a result (the host's, if joined), failed a failure, aborted neither"
            raise ValueError(message)
        if self.outcome == Outcome.COMPLETED and self.run is None:
            message = "what never ran cannot have completed"
            raise ValueError(message)
        return self


class TimerSet(Payload):
    """A run sleeps until a moment."""

    family = "timer-set"
    run: str
    name: str
    until: str
    """UTC, ISO 8601 with milliseconds, as every moment in a record."""


class RetryScheduled(Payload):
    """A run could not go on now and may not be tried again before a moment."""

    family = "retry-scheduled"
    run: str
    attempt: int
    not_before: str
    error_tag: str
    message: str


class EventAwaited(Payload):
    """A run waits for something that the outside tells its thread."""

    family = "event-awaited"
    run: str
    name: str
    event: str
    until: str | None = None


class EventReceived(Payload):
    """The event arrived, or its time was up (then there is no payload)."""

    family = "event-received"
    run: str
    name: str
    event: str
    key: str | None = None
    """The sender's idempotency key; absent when the time was up."""
    content: Annotated[Json | None, PlainValidator(_as_json)] = None


class ApprovalRequested(Payload):
    """A run asks a person before it does something; bound to a digest of what would be done."""

    family = "approval-requested"
    run: str
    name: str
    tool: str
    arguments: AnyJson
    digest: str
    expires_at: str | None = None


class ApprovalDecided(Payload):
    """What the person said, or that the time was up."""

    family = "approval-decided"
    run: str
    name: str
    decision: Literal["approved", "denied", "expired", "withdrawn"]
    resolver: str
    reason: str


class ToolCallPrepared(Payload):
    """A call is about to run. From here on it may have had its effect."""

    family = "tool-prepared"
    run: str
    turn: int
    call: str
    tries: int
    tool: str
    kind: Literal["ordinary", "idempotent", "reconciled", "stepped"]
    arguments: AnyJson
    digest: str


class ToolCallSettled(Payload):
    """The result of a call, or its declared failure."""

    family = "tool-settled"
    run: str
    turn: int
    call: str
    tries: int
    tool: str
    result: AnyJson
    is_failure: bool
    by: Literal["handler", "reconciler", "operator"]


class ToolCallUnknown(Payload):
    """Nobody can tell whether the call had its effect."""

    family = "tool-unknown"
    run: str
    turn: int
    call: str
    tries: int
    tool: str
    reason: str


class ToolCallResolved(Payload):
    """Somebody could tell after all."""

    family = "tool-resolved"
    run: str
    turn: int
    call: str
    tries: int
    resolution: Literal["completed-with-result", "failed-with-error", "never-started", "safe-retry", "abort"]
    author: str
    reason: str


class FollowupsTaken(Payload):
    """At this point a run took these queued submissions along; their inputs precede it in the same batch."""

    family = "followups-taken"
    run: str
    name: str
    submissions: list[str]


class AbortRequested(Payload):
    """An accepted abort takes effect."""

    family = "abort-requested"
    submission: str
    author: str
    reason: str


class RepairAnnotated(Payload):
    """Recovery changed something; for people who ask why."""

    family = "repair-annotated"
    submission: str
    decision: str
    detail: str = ""


FAMILIES: dict[tuple[str, int], type[Payload]] = {
    (payload.family, payload.version): payload
    for payload in (
        ThreadCreated,
        UserInput,
        StepSettled,
        TimerSet,
        RetryScheduled,
        EventAwaited,
        EventReceived,
        ApprovalRequested,
        ApprovalDecided,
        ToolCallPrepared,
        ToolCallSettled,
        ToolCallUnknown,
        ToolCallResolved,
        FollowupsTaken,
        AbortRequested,
        SubmissionSettled,
        RepairAnnotated,
    )
}
"""Every payload that this release can read, by family and version."""

PROGRESS = frozenset(
    payload.family
    for payload in (
        StepSettled,
        ToolCallSettled,
        TimerSet,
        EventAwaited,
        EventReceived,
        ApprovalRequested,
        ApprovalDecided,
        FollowupsTaken,
        SubmissionSettled,
    )
)
"""Families whose records are real progress of a run, not a claim, a repair, a try or an input."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that is to be appended."""

    record_id: str
    payload: Payload

    def body(self) -> Json:
        """The canonical text without the time: what two appends of the same fact have in common."""
        return canonical.compose(
            {
                "family": self.payload.family,
                "id": self.record_id,
                "payload": self.payload.text(),
                "v": self.payload.version,
            }
        )


def stamped(body: Json, at: str) -> Json:
    """The stored text of a record: its body and the time of its append. `at` sorts before every other member."""
    return Json(f'{{"at":"{at}",{body[1:]}')


def decode(family: str, version: int, payload: Any) -> Payload:
    """The payload of a stored record. Raises `ValueError` for an unknown family or an unfit payload."""
    known = FAMILIES.get((family, version))
    if known is None:
        message = f"no payload for family {family!r}, version {version}"
        raise ValueError(message)
    return known.model_validate(payload)


def thread_created_id(thread_id: str) -> str:
    return f"thread-created:{thread_id}"


def run_id(submission: SubmissionId) -> str:
    return f"run:{submission}"


def receipt_id(submission: SubmissionId) -> str:
    return f"receipt:{submission}"


def input_id(submission: SubmissionId) -> str:
    return f"input:{submission}"


def step_id(run: str, name: str) -> str:
    return f"step:{run}:{name}"


def of_run(kind: str, run: str, name: str) -> str:
    """The id of a record that a run makes once under a name: `timer`, `event-awaited`, `approval-requested`, …"""
    return f"{kind}:{run}:{name}"


def call_id(kind: str, run: str, turn: int, tries: int, call: str) -> str:
    """The id of a record of one try of a call: `tool-prepared`, `tool-settled`, `tool-unknown`, `tool-resolved`."""
    return f"{kind}:{run}:{turn}:{tries}:{call}"


def abort_id(submission: SubmissionId) -> str:
    return f"abort:{submission}"


def run_of(record_id: str) -> str:
    """The run that a record belongs to, from its id (`kind:run:<submission>:…`); an id of another shape gives none."""
    return ":".join(record_id.split(":", 3)[1:3])


def step_name(run: str, record_id: str) -> str | None:
    """The name of the step that this record settles, if it is one of that run."""
    prefix = step_id(run, "")
    return record_id.removeprefix(prefix) if record_id.startswith(prefix) else None


def settlement_id(submission: SubmissionId) -> str:
    return f"settlement:{submission}"


def repair_id(submission: SubmissionId, decision: str, epoch: int) -> str:
    """One for each pass that repaired: a second repair of the same kind is a fact of its own."""
    return f"repair:{submission}:{decision}:{epoch}"


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else value
