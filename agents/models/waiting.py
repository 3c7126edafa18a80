"""What a submission waits for or what somebody decided about it: operational rows that the log justifies.

Rows written by a pass go with their record in one fenced transaction; rows written by people and other systems
(decisions, resolutions, events, abort intents) go through the gate and become records in the next pass.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from agents.models.submission import Submission
from agents.models.thread import Thread


class CallStatus(models.TextChoices):
    """Where a tool call stands."""

    PREPARED = "prepared", "prepared"
    """Recorded before it ran; open until a result or a resolution is recorded."""
    SETTLED = "settled", "settled"
    """Its result, or its declared failure, is in the log."""
    UNKNOWN = "unknown", "unknown"
    """It may have run; a person or a reconciler has to say."""
    PERMITTED = "permitted", "permitted"
    """It certainly had no effect, or may be repeated: the next attempt runs it again, as a new try."""


class ToolKind(models.TextChoices):
    """What may be done with a call that was prepared and has no recorded result."""

    ORDINARY = "ordinary", "ordinary"
    """Never run again by the system. The default: the safe one."""
    IDEMPOTENT = "idempotent", "idempotent"
    """Run again under the same call id as idempotency key."""
    RECONCILED = "reconciled", "reconciled"
    """A function of the user looks up what happened."""

    STEPPED = "stepped", "stepped"
    """Entered again from its top: all its effects are in durable steps, which are not repeated."""


class ToolCall(models.Model):
    """One call of a tool by a run; `tries` counts how often it was prepared."""

    submission = models.ForeignKey(Submission, on_delete=models.PROTECT, related_name="tool_calls")
    turn = models.IntegerField(default=0, help_text="Turn of the run; 0 for handlers.")
    call = models.CharField(max_length=200, help_text="The call's name, unique within its run and turn.")
    tool = models.CharField(max_length=200)
    kind = models.CharField(max_length=16, choices=ToolKind.choices)
    arguments = models.TextField(help_text="Canonical JSON text (RFC 8785).")
    tries = models.IntegerField(default=1)
    status = models.CharField(max_length=16, choices=CallStatus.choices)
    unknown_reason = models.CharField(max_length=500, blank=True, default="")
    prepared_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("resolve_unknown", "Can say what became of an unknown call")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["submission", "turn", "call"], name="wakeful_tool_call"),
            models.CheckConstraint(condition=Q(status__in=CallStatus.values), name="wakeful_tool_call_status"),
            models.CheckConstraint(condition=Q(kind__in=ToolKind.values), name="wakeful_tool_call_kind"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["updated_at"], name="wakeful_calls_unknown", condition=Q(status=CallStatus.UNKNOWN)),
        ]

    def __str__(self) -> str:
        return f"{self.tool} ({self.call}) of {self.submission_id}"


class ResolutionKind(models.TextChoices):
    """What a person found out about an unknown call."""

    COMPLETED = "completed-with-result", "it happened, with this result"
    FAILED = "failed-with-error", "it happened and failed"
    NEVER_STARTED = "never-started", "it never happened: run it"
    SAFE_RETRY = "safe-retry", "it may safely be repeated: run it"
    ABORT = "abort", "give the submission up"


class UnknownResolution(models.Model):
    """A person's answer about one try of an unknown call. Written once through the gate, applied by a pass."""

    tool_call = models.ForeignKey(ToolCall, on_delete=models.PROTECT, related_name="resolutions")
    tries = models.IntegerField(help_text="The try that it answers; a later try needs an answer of its own.")
    resolution = models.CharField(max_length=32, choices=ResolutionKind.choices)
    result = models.TextField(blank=True, default="", help_text="Canonical JSON of the result or the error text.")
    author = models.CharField(max_length=200)
    reason = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tool_call", "tries"], name="wakeful_resolution_once"),
            models.CheckConstraint(condition=Q(resolution__in=ResolutionKind.values), name="wakeful_resolution_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.resolution} for {self.tool_call_id}"


class ApprovalDecision(models.TextChoices):
    """How an approval was decided."""

    APPROVED = "approved", "approved"
    DENIED = "denied", "denied"
    EXPIRED = "expired", "expired"
    WITHDRAWN = "withdrawn", "withdrawn"
    """Nobody needs an answer any more: the submission was aborted."""


class Approval(models.Model):
    """One question to a person, bound to a digest of what was asked; decided once.

    The row appears in the transaction that suspends its submission, so it can be decided from that moment on.
    """

    id = models.UUIDField(primary_key=True)
    submission = models.ForeignKey(Submission, on_delete=models.PROTECT, related_name="approvals")
    name = models.CharField(max_length=200, help_text="Which question of the run this is.")
    tool = models.CharField(max_length=200, help_text="What would be done.")
    arguments = models.TextField(help_text="With which arguments: canonical JSON text.")
    digest = models.CharField(max_length=64, help_text="SHA-256 over tool and arguments; a decision names it.")
    requested_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    decision = models.CharField(max_length=16, choices=ApprovalDecision.choices, blank=True, default="")
    decided_by = models.CharField(max_length=200, blank=True, default="")
    reason = models.TextField(blank=True, default="")
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("resolve_approval", "Can approve or deny")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["submission", "name"], name="wakeful_approval_name"),
            models.CheckConstraint(
                condition=Q(decision="", decided_at__isnull=True)
                | Q(decision__in=ApprovalDecision.values, decided_at__isnull=False),
                name="wakeful_approval_decided",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["requested_at"], name="wakeful_approvals_open", condition=Q(decision="")),
        ]

    def __str__(self) -> str:
        return f"{self.tool}: {self.decision or 'undecided'}"


class Event(models.Model):
    """Something that the outside told a thread. Waits until a run asks for its name; taken once, oldest first."""

    thread = models.ForeignKey(Thread, on_delete=models.PROTECT, related_name="events")
    name = models.CharField(max_length=200)
    key = models.CharField(max_length=256, help_text="Idempotency key of the sender.")
    payload = models.TextField(help_text="Canonical JSON text (RFC 8785).")
    received_at = models.DateTimeField()
    taken_by = models.ForeignKey(
        Submission, null=True, blank=True, on_delete=models.PROTECT, related_name="events", db_index=False
    )

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("send_event", "Can send an event to a thread")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["thread", "name", "key"], name="wakeful_event_key"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["thread", "name", "id"], name="wakeful_events_new", condition=Q(taken_by=None)),
        ]

    def __str__(self) -> str:
        return f"{self.name} for {self.thread_id}"


class AbortIntent(models.Model):
    """Somebody asked for a submission's end. The first asker is kept."""

    submission = models.OneToOneField(
        Submission, primary_key=True, on_delete=models.PROTECT, related_name="abort_intent"
    )
    author = models.CharField(max_length=200)
    reason = models.TextField()
    requested_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"abort of {self.submission_id}"
