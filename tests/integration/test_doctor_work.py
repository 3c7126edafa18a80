"""The doctor's look at the work itself: lateness, sweeps, workers, beat, quarantine (field reports D1, D3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone

from maintenance import beat, clock
from maintenance.doctor import Finding, Level, examine, work
from maintenance.models import ThreadMaintenance, WorkerHeartbeat
from tests.factories import MS, live_lease, make_row

pytestmark = pytest.mark.django_db


def make_alive(worker: str = "host:1", ago: timedelta = timedelta()) -> None:
    seen = clock.now() - ago
    WorkerHeartbeat.objects.create(worker=worker, seen_at=seen, started_at=seen)


def make_late(thread_id: str = "t", by: timedelta = timedelta(minutes=5), **columns: Any) -> None:
    make_row(2, 1, slot_ms=-by / MS, thread_id=thread_id, **columns)


def found(findings: list[Finding], subject: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.id == subject]
    return finding


# --- Work ---------------------------------------------------------------------------------------


def test_d1_work_that_stands_still_is_an_error_with_count_age_and_queue() -> None:
    make_alive()
    make_late(hint_seq=1, hint_at=clock.now())

    finding = found(work.examine(), "work.overdue")

    assert finding.level is Level.ERROR
    assert "1 thread is overdue, the oldest by 5 min" in finding.text
    assert "not started: queue 'maintenance'" in finding.text
    assert "sweep --inline" in finding.hint


def test_work_that_is_late_for_a_moment_is_a_warning() -> None:
    make_late(by=timedelta(seconds=10), hint_seq=1, hint_at=clock.now())

    assert found(work.examine(), "work.overdue").level is Level.WARNING


def test_due_work_that_no_sweep_has_handed_over_is_told_apart() -> None:
    make_late("handed", hint_seq=1, hint_at=clock.now())
    assert found(work.examine(), "sweep.age").level is Level.OK

    make_late("never")
    make_late("running", **live_lease())
    finding = found(work.examine(), "sweep.age")

    assert finding.level is Level.ERROR
    assert "1 due thread" in finding.text


def test_workers_are_counted_by_their_heartbeats() -> None:
    make_alive("a:1")
    make_alive("b:2", ago=timedelta(seconds=29))
    make_alive("c:3", ago=timedelta(seconds=31))

    finding = found(work.examine(), "workers.heartbeat")

    assert finding.level is Level.OK
    assert finding.text == "2 workers alive: a:1, b:2."


def test_no_worker_is_a_warning_and_with_work_that_waits_an_error() -> None:
    assert found(work.examine(), "workers.heartbeat").text == "No worker was ever seen."
    assert found(work.examine(), "workers.heartbeat").level is Level.WARNING

    make_alive(ago=timedelta(hours=2))
    make_late()

    finding = found(work.examine(), "workers.heartbeat")
    assert finding.level is Level.ERROR
    assert "last was seen 2 h ago" in finding.text


def test_a_thread_in_quarantine_is_a_warning_that_names_one() -> None:
    make_late("poison", quarantined_at=clock.now())

    finding = found(work.examine(), "work.quarantine")

    assert finding.level is Level.WARNING
    assert "'poison'" in finding.text


def test_parked_threads_are_a_warning_with_the_reason_of_the_last() -> None:
    make_late("stopped", paused_at=clock.now())
    make_late("unpaid", paused_at=clock.now(), last_outcome="parked", last_error="the balance is exhausted")
    earlier = clock.now() - timedelta(hours=1)
    make_late("revoked", paused_at=earlier, last_outcome="parked", last_error="the key is revoked")
    make_late("resumed", last_outcome="parked", last_error="the key is revoked")

    finding = found(work.examine(), "work.parked")

    assert finding.level is Level.WARNING
    assert finding.text == "2 threads were parked for a person, 'unpaid' last: the balance is exhausted"
    assert "maintenance resume" in finding.hint


def test_beat_is_told_by_the_time_of_its_last_sweep() -> None:
    from django_celery_beat.models import PeriodicTask

    beat.make_rows(beat.periodic_rows)
    row = PeriodicTask.objects.filter(name=beat.SWEEP)
    row.update(last_run_at=None)
    assert "never sent" in found(work.examine(), "sweep.beat").text

    row.update(last_run_at=timezone.now() - timedelta(seconds=3))
    assert found(work.examine(), "sweep.beat").level is Level.OK

    row.update(last_run_at=timezone.now() - timedelta(minutes=10))
    assert "10 min ago" in found(work.examine(), "sweep.beat").text

    row.update(enabled=False)
    assert "disabled" in found(work.examine(), "sweep.beat").text


def test_without_beat_installed_beat_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "is_installed", lambda _: False)

    assert "sweep.beat" not in {finding.id for finding in work.examine()}


def test_the_doctor_changes_nothing() -> None:
    make_late()
    before = ThreadMaintenance.objects.values().get()

    examine()

    assert ThreadMaintenance.objects.values().get() == before
