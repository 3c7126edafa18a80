"""The work itself: is anything late, does anyone sweep, does anyone work."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.apps import apps
from django.db.models import F, Q

from maintenance import beat, clock, status
from maintenance.conf import get_settings
from maintenance.doctor.findings import Finding, error, info, ok, warning
from maintenance.errors import bounded
from maintenance.models import ThreadMaintenance, WorkerHeartbeat
from maintenance.wording import counted, spoken

STANDS_STILL = timedelta(seconds=60)
"""Work that is late by more than this is not merely waiting its turn."""


def examine() -> list[Finding]:
    """Lateness, hand-overs, workers, beat, who waits for a person, deadlines that do not move on."""
    now, health = clock.now(), status.health()
    alive = [_lateness(health), _sweep(now), _workers(now, owing=not health.ok), *_beat(now)]
    return [*alive, *_quarantine(), *_parked(), *_stuck()]


def _lateness(health: status.Health) -> Finding:
    if health.ok:
        return ok("work.overdue", health.sentence())
    hint = (
        f"Start workers on the queue {health.queue!r} or restart those that hang. "
        "`manage.py maintenance sweep --inline` runs what is due without them."
    )
    return _late("work.overdue", health.sentence(), hint, by=health.oldest or timedelta())


def _sweep(now: datetime) -> Finding:
    """A slot that is due, free and not handed over outlives no sweep: the best witness that one ran."""
    by = status.usual_lateness()
    missed = ThreadMaintenance.objects.filter(status.overdue(now, by)).filter(
        Q(hint_seq__isnull=True) | ~Q(hint_seq=F("alarm_seq"))
    )
    oldest = missed.order_by("alarm_at").values_list("alarm_at", flat=True).first()
    if oldest is None:
        return ok("sweep.age", f"No due thread waits for a sweep for more than {spoken(by)}.")
    due = counted(missed.count(), "due thread", "due threads")
    text = f"No sweep has handed over {due}, the oldest for {spoken(now - oldest)}."
    hint = "Sweeps run in every worker and by beat: start one of them, or run `manage.py maintenance sweep` from cron."
    return _late("sweep.age", text, hint, by=now - oldest)


def _late(subject: str, text: str, hint: str, *, by: timedelta) -> Finding:
    """A burst of work may be late for a moment; what is later than that stands still."""
    return error(subject, text, hint) if by > STANDS_STILL else warning(subject, text, hint)


def _workers(now: datetime, *, owing: bool) -> Finding:
    alive = list(WorkerHeartbeat.objects.filter(seen_at__gte=now - status.ALIVE).values_list("worker", flat=True)[:20])
    if alive:
        return ok("workers.heartbeat", f"{counted(len(alive), 'worker', 'workers')} alive: {', '.join(sorted(alive))}.")
    last = WorkerHeartbeat.objects.order_by("-seen_at").first()
    text = (
        "No worker was ever seen."
        if last is None
        else f"No worker alive; the last was seen {spoken(now - last.seen_at)} ago."
    )
    hint = f"Start one: celery -A PROJECT worker --queues {get_settings().queue},{get_settings().control_queue}"
    return error("workers.heartbeat", text, hint) if owing else warning("workers.heartbeat", text, hint)


def _beat(now: datetime) -> list[Finding]:
    """When beat last sent a sweep, where django-celery-beat is installed. Workers sweep by themselves too."""
    if not apps.is_installed("django_celery_beat"):
        return []
    from django_celery_beat.models import PeriodicTask  # noqa: PLC0415 - an optional app

    row = PeriodicTask.objects.filter(name=beat.SWEEP).first()
    if row is None or not row.enabled:
        return [
            info("sweep.beat", "Beat sends no sweep (its row is missing or disabled); workers sweep by themselves.")
        ]
    if row.last_run_at is None:
        return [info("sweep.beat", "Beat has never sent a sweep; workers sweep by themselves.")]
    age = now - row.last_run_at
    if age > STANDS_STILL + get_settings().sweep_interval:
        text = f"Beat sent its last sweep {spoken(age)} ago; workers sweep by themselves."
        return [info("sweep.beat", text, "Restart beat if you run it.")]
    return [ok("sweep.beat", f"Beat sent a sweep {spoken(age)} ago.")]


def _quarantine() -> list[Finding]:
    held = ThreadMaintenance.objects.filter(status.QUARANTINED)
    count = held.count()
    if not count:
        return []
    one = held.values_list("thread_id", flat=True).first()
    text = f"{counted(count, 'thread is', 'threads are')} in quarantine, {one!r} for one."
    hint = (
        "Find out what kills their passes (worker log, admin), then: manage.py maintenance release THREAD --reason WHY"
    )
    return [warning("work.quarantine", text, hint)]


def _parked() -> list[Finding]:
    held = ThreadMaintenance.objects.filter(status.PARKED)
    count = held.count()
    if not count:
        return []
    one, reason = held.values_list("thread_id", "last_error").order_by("-paused_at")[0]
    text = f"{counted(count, 'thread was', 'threads were')} parked for a person, {one!r} last: {bounded(reason, 200)}"
    hint = (
        "Mend what the reason says (`manage.py maintenance status THREAD`), then: manage.py maintenance resume THREAD"
    )
    return [warning("work.parked", text, f"{hint} --reason WHY")]


def _stuck() -> list[Finding]:
    stuck = ThreadMaintenance.objects.filter(status.STUCK)
    count = stuck.count()
    if not count:
        return []
    one = stuck.values_list("thread_id", flat=True).first()
    threads = counted(count, "thread", "threads")
    text = f"A deadline of publication, projection or messages stays due, pass after pass: {threads}, {one!r} for one."
    hint = (
        "The worker's log names the port (port.deadline_stuck). A port that could not deliver has to move its deadline "
        "on, to its next try; a backlog that is served pass by pass comes to an end by itself."
    )
    return [warning("work.stuck_deadline", text, hint)]
