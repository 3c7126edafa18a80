"""The rows of maintenance. Fields, constraints and pure derivations; every write is in a verb's module."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

SCHEMA_VERSION = 1
"""The only layout of `ThreadMaintenance` that this release reads."""


class ThreadMaintenance(models.Model):
    """One thread's generations, its one alarm slot and its one lease.

    A thread without a row reads as `dirty=1, processed=0`: a thread older than its row gets one useful pass.
    """

    thread_id = models.CharField(max_length=255, primary_key=True)
    schema_version = models.PositiveSmallIntegerField(default=SCHEMA_VERSION, db_default=SCHEMA_VERSION)
    dirty = models.BigIntegerField(default=1, db_default=1, help_text="Newest generation that a mutation announced.")
    processed = models.BigIntegerField(default=0, db_default=0, help_text="Newest generation that a pass acknowledged.")
    nonterminal = models.IntegerField(
        default=0, db_default=0, help_text="Unsettled submissions that the last actionable finish saw."
    )

    alarm_at = models.DateTimeField(
        null=True, blank=True, help_text="The slot: when the next pass is due. Empty means nothing is owed."
    )
    alarm_seq = models.BigIntegerField(
        default=0, db_default=0, help_text="Grows whenever the slot changes; a delivery must carry it."
    )
    timer_at = models.DateTimeField(
        null=True, blank=True, help_text="The earliest durable timer. Its coming bumps the generation."
    )

    lease_token = models.UUIDField(null=True, blank=True)
    lease_epoch = models.BigIntegerField(default=0, db_default=0)
    lease_owner = models.CharField(max_length=200, blank=True, default="", db_default="")
    lease_started_at = models.DateTimeField(null=True, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    mutating_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Latest expiry of the pre-armed mutations in flight. On the row, because in a statement that "
        "waited for the row's lock only the row itself is current.",
    )

    stalls = models.IntegerField(default=0, db_default=0, help_text="Passes in a row without progress.")
    failures = models.IntegerField(default=0, db_default=0, help_text="Failed passes in a row.")
    starts_since_finish = models.IntegerField(
        default=0, db_default=0, help_text="Passes begun since one ended or made progress; detects poison."
    )
    paused_at = models.DateTimeField(null=True, blank=True)
    quarantined_at = models.DateTimeField(null=True, blank=True)
    quarantine_reason = models.CharField(max_length=200, blank=True, default="", db_default="")

    hint_seq = models.BigIntegerField(
        null=True, blank=True, help_text="The slot sequence last handed to the broker. Never read as delivered."
    )
    hint_at = models.DateTimeField(null=True, blank=True)
    hint_attempts = models.IntegerField(default=0, db_default=0)

    last_outcome = models.CharField(max_length=20, blank=True, default="", db_default="")
    last_report = models.JSONField(null=True, blank=True)
    last_error = models.TextField(blank=True, default="", db_default="")
    updated_at = models.DateTimeField(default=None, null=True, blank=True)

    class Meta:
        verbose_name = "thread maintenance"
        verbose_name_plural = "thread maintenance"
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("force_pass", "Can force a pass of a thread"),
            ("wake_thread", "Can wake a thread"),
            ("pause_thread", "Can pause a thread"),
            ("resume_thread", "Can resume a thread"),
            ("release_thread", "Can release a quarantined thread"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(processed__lte=F("dirty")), name="wakeful_processed_lte_dirty"),
            models.CheckConstraint(
                condition=Q(processed=F("dirty")) | Q(alarm_at__isnull=False), name="wakeful_dirty_implies_armed"
            ),
            models.CheckConstraint(
                condition=Q(dirty__gte=0, processed__gte=0, nonterminal__gte=0, alarm_seq__gte=0)
                & Q(stalls__gte=0, failures__gte=0, starts_since_finish__gte=0, lease_epoch__gte=0),
                name="wakeful_counters_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(lease_token__isnull=True, lease_expires_at__isnull=True)
                | Q(lease_token__isnull=False, lease_expires_at__isnull=False),
                name="wakeful_lease_is_whole",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["alarm_at"],
                name="wakeful_armed",
                condition=Q(alarm_at__isnull=False, paused_at__isnull=True, quarantined_at__isnull=True),
            ),
            models.Index(
                fields=["lease_expires_at"], name="wakeful_leased", condition=Q(lease_expires_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.thread_id

    @property
    def is_dirty(self) -> bool:
        """Whether a generation is announced that no pass has acknowledged."""
        return self.dirty > self.processed

    def has_live_lease(self, now: datetime) -> bool:
        """Whether a pass holds the thread; at exactly its expiry a lease is no longer live."""
        return self.lease_expires_at is not None and self.lease_expires_at > now

    def has_mutation_in_flight(self, now: datetime) -> bool:
        """Whether a pre-armed mutation may still be writing."""
        return self.mutating_until is not None and self.mutating_until > now

    def effective_due(self, now: datetime) -> datetime | None:
        """When the slot can be acted on: a live lease hides it until the lease ends."""
        if self.alarm_at is None or self.lease_expires_at is None or self.lease_expires_at <= now:
            return self.alarm_at
        return max(self.alarm_at, self.lease_expires_at)


class MutationLease(models.Model):
    """A pre-armed mutation in flight: while it lives, no pass acknowledges its thread."""

    token = models.UUIDField(primary_key=True)
    thread_id = models.CharField(max_length=255)
    generation = models.BigIntegerField()
    label = models.CharField(max_length=100)
    owner = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        indexes: ClassVar = [models.Index(fields=["thread_id", "expires_at"], name="wakeful_mutation_thread")]

    def __str__(self) -> str:
        return f"{self.label} on {self.thread_id}"


class PassRun(models.Model):
    """The history of passes: one row for each pass that began and is known to have ended."""

    thread_id = models.CharField(max_length=255)
    epoch = models.BigIntegerField()
    trigger = models.CharField(max_length=20)
    outcome = models.CharField(max_length=20)
    phase = models.CharField(max_length=20, blank=True, default="")
    generation = models.BigIntegerField(null=True, blank=True)
    recovered = models.IntegerField(default=0)
    settled = models.IntegerField(default=0)
    nonterminal = models.IntegerField(default=0)
    alarm = models.CharField(max_length=10, blank=True, default="")
    due_at = models.DateTimeField(null=True, blank=True, help_text="The deadline that this pass answered.")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    owner = models.CharField(max_length=200)
    error = models.TextField(blank=True, default="")

    class Meta:
        default_permissions = ("view",)
        indexes: ClassVar = [
            models.Index(fields=["thread_id", "id"], name="wakeful_passrun_thread"),
            models.Index(fields=["finished_at"], name="wakeful_passrun_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.thread_id} epoch {self.epoch}: {self.outcome}"


class OperatorAction(models.Model):
    """What a person did to a thread, and why. Append-only."""

    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=50)
    thread_id = models.CharField(max_length=255)
    reason = models.TextField()
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ("view",)
        indexes: ClassVar = [models.Index(fields=["thread_id", "id"], name="wakeful_action_thread")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.thread_id}"


class WorkerHeartbeat(models.Model):
    """When the timer of each worker was last seen alive. For people and health checks; slots show who sweeps."""

    worker = models.CharField(max_length=200, primary_key=True)
    seen_at = models.DateTimeField()
    started_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.worker
