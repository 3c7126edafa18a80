"""The tables of the field's small job: entities, jobs that wait, and the record of what was done."""

from __future__ import annotations

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Entity(models.Model):
    """What jobs belong to; plain Celery locks its row."""

    name = models.CharField(max_length=255, primary_key=True)

    objects: ClassVar[models.Manager[Self]] = models.Manager()

    def __str__(self) -> str:
        return self.name


class Job(models.Model):
    """One job of an entity, waiting or done. Plain Celery keeps its jobs in the broker instead."""

    entity = models.CharField(max_length=255)
    number = models.IntegerField()
    done = models.BooleanField(default=False)

    objects: ClassVar[models.Manager[Self]] = models.Manager()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["entity", "id"], name="bench_waiting", condition=Q(done=False))]

    def __str__(self) -> str:
        return f"{self.entity} {self.number}"


class Record(models.Model):
    """The row that a job appends."""

    entity = models.CharField(max_length=255)
    number = models.IntegerField()
    made_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[models.Manager[Self]] = models.Manager()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["entity", "id"], name="bench_recorded")]

    def __str__(self) -> str:
        return f"{self.entity} {self.number}"
