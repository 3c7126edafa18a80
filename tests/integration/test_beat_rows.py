"""The rows of django-celery-beat: made once by `migrate`, the operator's from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from maintenance import beat

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db

NAMES = {"maintenance.sweep", "maintenance.ensure_audit", "maintenance.prune"}


def migrate() -> None:
    call_command("migrate", verbosity=0)


def row(name: str) -> PeriodicTask:
    return PeriodicTask.objects.get(name=name)


def test_migrate_makes_the_three_rows() -> None:
    rows = PeriodicTask.objects.filter(name__startswith="maintenance.")

    assert {each.name for each in rows} == NAMES
    assert {each.task for each in rows} == NAMES
    assert {each.queue for each in rows} == {"maintenance.control"}
    assert all(each.enabled for each in rows)


@pytest.mark.parametrize(("name", "seconds"), [(beat.SWEEP, 1), (beat.ENSURE_AUDIT, 60), (beat.PRUNE, 86_400)])
def test_each_row_runs_at_its_interval_and_expires_after_one(name: str, seconds: int) -> None:
    made = row(name)

    assert (made.interval.every, made.interval.period) == (seconds, IntervalSchedule.SECONDS)
    assert made.expire_seconds == seconds


def test_a_second_migrate_makes_no_second_row() -> None:
    migrate()

    assert PeriodicTask.objects.filter(name__startswith="maintenance.").count() == 3


def test_an_operators_edits_survive_a_migrate() -> None:
    slower = IntervalSchedule.objects.create(every=7, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.filter(name=beat.SWEEP).update(
        enabled=False, interval=slower, queue="mine", expire_seconds=None
    )

    migrate()

    kept = row(beat.SWEEP)
    assert (kept.enabled, kept.interval, kept.queue) == (False, slower, "mine")
    assert kept.expire_seconds is None


def test_two_equal_schedules_in_the_database_are_no_obstacle() -> None:
    IntervalSchedule.objects.create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.filter(name=beat.SWEEP).delete()

    migrate()

    assert row(beat.SWEEP).interval.every == 1


def test_a_sweep_of_less_than_a_second_keeps_its_interval(settings: Settings) -> None:
    PeriodicTask.objects.filter(name=beat.SWEEP).delete()
    settings.MAINTENANCE = {"SWEEP_INTERVAL_MS": 1_500}

    migrate()

    made = row(beat.SWEEP)
    assert (made.interval.every, made.interval.period) == (1_500_000, IntervalSchedule.MICROSECONDS)
    assert made.expire_seconds == 2
