"""The rows that drive the periodic tasks when django-celery-beat is installed.

They are made once, when its tables and ours are first migrated. From then on they belong to the
operator: an interval changed, a task disabled survives every restart and every later `migrate`.
Without them nothing is lost, since each worker's own timer sweeps too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections, router
from django.db.models.signals import post_migrate

from maintenance.conf import get_settings

if TYPE_CHECKING:
    from django_celery_beat.models import IntervalSchedule

SWEEP = "maintenance.sweep"
ENSURE_AUDIT = "maintenance.ensure_audit"
PRUNE = "maintenance.prune"


@dataclass(frozen=True, slots=True)
class PeriodicRow:
    """One periodic task: row and Celery task bear the same name."""

    name: str
    interval: timedelta
    description: str

    @property
    def expire_seconds(self) -> int:
        """One interval, in whole seconds: a tick that waited longer was followed by another."""
        return max(1, ceil(self.interval.total_seconds()))


Rows = Callable[[], tuple[PeriodicRow, ...]]


def periodic_rows() -> tuple[PeriodicRow, ...]:
    """Return the rows of maintenance that a new database gets, with the intervals of the settings in force."""
    settings = get_settings()
    return (
        PeriodicRow(SWEEP, settings.sweep_interval, "Hands due and near alarms to the broker."),
        PeriodicRow(ENSURE_AUDIT, settings.ensure_interval, "Arms what is owed and has no alarm."),
        PeriodicRow(PRUNE, timedelta(days=1), "Deletes the history of passes beyond its age."),
    )


def connect(label: str, rows: Rows) -> None:
    """Have an app's rows made after it was migrated; called when the app is ready."""
    if apps.is_installed("django_celery_beat"):
        post_migrate.connect(
            partial(_after_migrate, rows),
            sender=apps.get_app_config(label),
            dispatch_uid=f"{label}.periodic_rows",
            weak=False,
        )


def make_rows(rows: Rows, using: str = "default") -> None:
    """Create the rows that are missing from the database `using`; leave the others as they are."""
    from django_celery_beat.models import PeriodicTask  # noqa: PLC0415 - an optional app

    for row in rows():
        tasks = PeriodicTask.objects.using(using)
        if not tasks.filter(name=row.name).exists():
            tasks.create(
                name=row.name,
                task=row.name,
                interval=_schedule(row.interval, using),
                queue=get_settings().control_queue,
                expire_seconds=row.expire_seconds,
                description=row.description,
            )


def _after_migrate(rows: Rows, *, using: str, **_kwargs: Any) -> None:
    if _has_tables(using):
        make_rows(rows, using)


def _has_tables(using: str) -> bool:
    """Tell whether beat's tables live in this database and are there already.

    They are missing while only this app is migrated, or migrated first.
    """
    from django_celery_beat.models import PeriodicTask  # noqa: PLC0415 - an optional app

    return (
        router.allow_migrate_model(using, PeriodicTask)
        and PeriodicTask._meta.db_table in connections[using].introspection.table_names()  # noqa: SLF001 - Django's public `_meta`
    )


def _schedule(interval: timedelta, using: str) -> IntervalSchedule:
    """Find or make the schedule; seconds where they are whole, so that the admin reads well."""
    from django_celery_beat.models import IntervalSchedule  # noqa: PLC0415 - an optional app

    whole = interval % timedelta(seconds=1) == timedelta(0)
    unit = timedelta(seconds=1) if whole else timedelta(microseconds=1)
    period = IntervalSchedule.SECONDS if whole else IntervalSchedule.MICROSECONDS
    schedules = IntervalSchedule.objects.using(using)
    # Nothing makes schedules unique, so `get_or_create` may find two and raise.
    found = schedules.filter(every=interval // unit, period=period).first()
    return found or schedules.create(every=interval // unit, period=period)
