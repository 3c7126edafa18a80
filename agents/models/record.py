"""The canonical log: batches, each the unit of one atomic append, and their records."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from agents.models.thread import Thread


class LogBatch(models.Model):
    """One append: who made it, and the two digests that prove it.

    `content_digest` says what was recorded, whoever recorded it and when: by it a replay is recognised.
    `digest` chains the stored texts of the whole log up to here.
    """

    thread = models.ForeignKey(Thread, on_delete=models.PROTECT, related_name="batches", db_index=False)
    batch_id = models.CharField(max_length=300)
    first_sequence = models.BigIntegerField()
    last_sequence = models.BigIntegerField()
    producer = models.CharField(max_length=200, help_text="The process that appended it.")
    epoch = models.BigIntegerField(help_text="Epoch of its lease; 0 for what an admission appends.")
    content_digest = models.CharField(max_length=64)
    previous_digest = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)

    class Meta:
        default_permissions = ("view",)
        verbose_name_plural = "log batches"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["thread", "batch_id"], name="wakeful_batch_id"),
            models.CheckConstraint(
                condition=Q(first_sequence__gte=1, last_sequence__gte=models.F("first_sequence")),
                name="wakeful_batch_sequences",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.batch_id} of {self.thread_id}"


class LogRecord(models.Model):
    """One fact: appended once, never updated. The columns beside the text are copies, for lookups."""

    # Its batch proves the thread; a second foreign key would cost every append one check more.
    thread = models.ForeignKey(
        Thread, on_delete=models.PROTECT, related_name="records", db_index=False, db_constraint=False
    )
    sequence = models.BigIntegerField(help_text="Its place in the log, from 1, without gaps.")
    batch = models.ForeignKey(LogBatch, on_delete=models.PROTECT, related_name="records", db_index=False)
    record_id = models.CharField(max_length=300, help_text="What the fact is about; a second one is refused.")
    family = models.CharField(max_length=40)
    text = models.TextField(help_text="The whole record as canonical JSON text (RFC 8785).")

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["thread", "sequence"], name="wakeful_record_sequence"),
            models.UniqueConstraint(fields=["thread", "record_id"], name="wakeful_record_id"),
            models.CheckConstraint(condition=Q(sequence__gte=1), name="wakeful_record_sequences"),
        ]

    def __str__(self) -> str:
        return f"{self.sequence} {self.record_id}"
