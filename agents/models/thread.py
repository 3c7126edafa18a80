"""The owner of one canonical log and one queue."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

EMPTY_DIGEST = "0" * 64
"""The digest of a log that holds nothing."""


class Thread(models.Model):
    """One conversation, order or device: what its submissions are done for, one after another.

    Its key is that of its maintenance row, whose lock guards every write here and whose lease epoch is the epoch
    of the log.
    """

    thread_id = models.CharField(max_length=255, primary_key=True)
    tail_sequence = models.BigIntegerField(
        default=0, db_default=0, help_text="Sequence of the log's last record; 0 for an empty log."
    )
    tail_digest = models.CharField(
        max_length=64, default=EMPTY_DIGEST, db_default=EMPTY_DIGEST, help_text="Digest of the log up to its tail."
    )
    next_queue_sequence = models.BigIntegerField(default=1, db_default=1)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("verify_thread", "Can verify a thread"),
            ("export_thread", "Can export the log of a thread"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(tail_sequence__gte=0, next_queue_sequence__gte=1), name="wakeful_thread_counts"
            ),
        ]

    def __str__(self) -> str:
        return self.thread_id
