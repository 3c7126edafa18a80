"""One accepted piece of work."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from agents.models.thread import Thread
from agents.states import Outcome, State, Wait


class Submission(models.Model):
    """Accepted once under its key, done in the order of its queue sequence, settled exactly once.

    The row is what is owed; what happened is in the log, and where the two disagree the log is right.
    """

    id = models.UUIDField(primary_key=True)
    thread = models.ForeignKey(Thread, on_delete=models.PROTECT, related_name="submissions", db_index=False)
    queue_sequence = models.BigIntegerField(help_text="Its place in the thread's queue, from 1, without gaps.")
    principal = models.CharField(max_length=256, blank=True, default="", help_text="Who submitted it; scopes the key.")
    idempotency_key = models.CharField(max_length=256)
    agent = models.CharField(max_length=200)
    input = models.TextField(help_text="Canonical JSON text (RFC 8785).")
    input_digest = models.CharField(max_length=64, help_text="SHA-256 of the input's canonical text.")
    state = models.CharField(max_length=16, choices=State.choices)
    outcome = models.CharField(max_length=16, choices=Outcome.choices, blank=True, default="", db_default="")
    attempts = models.IntegerField(default=0, db_default=0, help_text="Attempts begun.")
    first_sequence = models.BigIntegerField(
        null=True, blank=True, help_text="Where its part of the log begins: the sequence of its input record."
    )
    waits_for = models.CharField(
        max_length=16,
        choices=Wait.choices,
        blank=True,
        default="",
        db_default="",
        help_text="What a suspended submission waits for.",
    )
    waits_on = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Which approval, event or timer that is."
    )
    wake_at = models.DateTimeField(
        null=True, blank=True, help_text="When the wait ends by itself: a timer, a retry, an expiry."
    )
    host = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="joined",
        db_index=False,
        help_text="The submission whose run this one joined.",
    )
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("submit_submission", "Can submit work"),
            ("abort_submission", "Can abort a submission"),
            ("retry_submission", "Can have a submission tried again"),
            ("view_payload", "Can see inputs, arguments, results and records"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["thread", "principal", "idempotency_key"], name="wakeful_submission_key"),
            models.UniqueConstraint(fields=["thread", "queue_sequence"], name="wakeful_submission_queue"),
            models.CheckConstraint(condition=Q(state__in=State.values), name="wakeful_submission_state"),
            models.CheckConstraint(
                condition=Q(state=State.SETTLED, outcome__in=Outcome.values, settled_at__isnull=False)
                | (~Q(state=State.SETTLED) & Q(outcome="", settled_at__isnull=True)),
                name="wakeful_submission_outcome",
            ),
            models.CheckConstraint(
                condition=~Q(state=State.INPUT_APPLIED) | Q(first_sequence__isnull=False),
                name="wakeful_submission_input",
            ),
            models.CheckConstraint(
                condition=Q(state=State.SUSPENDED, waits_for__in=Wait.values)
                | (~Q(state=State.SUSPENDED) & Q(waits_for="", wake_at__isnull=True)),
                name="wakeful_submission_wait",
            ),
            models.CheckConstraint(
                condition=~Q(state=State.JOINED) | Q(host__isnull=False), name="wakeful_submission_host"
            ),
            models.CheckConstraint(
                condition=Q(queue_sequence__gte=1, attempts__gte=0), name="wakeful_submission_counts"
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["thread", "queue_sequence"], name="wakeful_submission_open", condition=~Q(state=State.SETTLED)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.agent} #{self.queue_sequence} of {self.thread_id}"
