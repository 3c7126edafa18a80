"""What the database shows about a test's threads: whether they came to rest, and what must never be seen."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from django.db.models import F, Q

from maintenance.models import PassRun, ThreadMaintenance
from tests.process.harness import PATIENCE_SECONDS, wait_until
from tests.process.jobs import Job, Outcome


def at_rest() -> bool:
    """Whether every job is done and no thread owes, holds or waits for anything."""
    quiet = Q(processed=F("dirty"), alarm_at__isnull=True, lease_token__isnull=True)
    restless = ThreadMaintenance.objects.exclude(quiet)
    return not Job.objects.filter(done=False).exists() and not restless.exists()


def wait_for_rest(*, seconds: float = PATIENCE_SECONDS) -> None:
    """Waits until all threads are at rest, and sees that each job ended once, under one lease at a time."""
    wait_until(at_rest, "all threads at rest", seconds=seconds)
    assert_each_job_ended_once()
    assert_no_two_passes_overlap()


def assert_each_job_ended_once() -> None:
    ended = Counter(Outcome.objects.values_list("job_id", flat=True))
    assert ended == Counter(Job.objects.values_list("pk", flat=True))


def assert_no_two_passes_overlap() -> None:
    """The leases of a thread, in the order of their epochs, do not overlap in the database's time."""
    ended: dict[str, datetime] = {}
    for run in PassRun.objects.order_by("thread_id", "epoch", "id"):
        assert run.started_at >= ended.get(run.thread_id, run.started_at), f"{run} began before the last one ended"
        ended[run.thread_id] = run.finished_at


def assert_invariants() -> None:
    """What must hold at every committed moment, also in the middle of a storm (A1, A3 and the whole lease)."""
    broken = (
        Q(dirty__gt=F("processed"), alarm_at__isnull=True)
        | Q(processed__gt=F("dirty"))
        | Q(lease_token__isnull=True, lease_expires_at__isnull=False)
    )
    assert not ThreadMaintenance.objects.filter(broken).exists()
    owed = Job.objects.filter(done=False, not_before__isnull=True).values("thread_id")
    forgotten = ThreadMaintenance.objects.filter(thread_id__in=owed, alarm_at__isnull=True)
    assert not forgotten.exists(), "accepted work without an alarm"


def runs(thread_id: str) -> list[PassRun]:
    """The passes of a thread, oldest first."""
    return list(PassRun.objects.filter(thread_id=thread_id).order_by("id"))


def outcomes(thread_id: str) -> list[str]:
    """How the passes of a thread ended, oldest first."""
    return [run.outcome for run in runs(thread_id)]


def row_of(thread_id: str) -> ThreadMaintenance:
    return ThreadMaintenance.objects.get(pk=thread_id)
