"""One ownership period in which a worker tried to advance a submission."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from agents.models.submission import Submission
from agents.states import Ending


class Attempt(models.Model):
    """Begun with a claim under a pass's lease, whose epoch it carries; history once it has ended."""

    submission = models.ForeignKey(Submission, on_delete=models.PROTECT, related_name="attempt_rows", db_index=False)
    number = models.IntegerField(help_text="Which attempt of its submission, from 1.")
    epoch = models.BigIntegerField(help_text="Epoch of the lease under which it ran.")
    owner = models.CharField(max_length=200, help_text="The process that ran it.")
    began_after = models.BigIntegerField(help_text="The log's tail when it began: what lies beyond is its work.")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ending = models.CharField(max_length=16, choices=Ending.choices, blank=True, default="", db_default="")

    class Meta:
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["submission", "number"], name="wakeful_attempt_number"),
            models.CheckConstraint(condition=Q(ending__in=["", *Ending.values]), name="wakeful_attempt_ending"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.submission_id}"
