"""Heartbeats are for people: one row a worker, and none for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from maintenance.ensure import prune
from maintenance.models import WorkerHeartbeat

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock

pytestmark = pytest.mark.django_db


def test_a_worker_that_was_not_seen_for_as_long_as_history_is_kept_is_forgotten(frozen: FrozenClock) -> None:
    """Every restart is a new worker with a row of its own: host and process id name it."""
    for name, days in (("restarted long ago", 14.1), ("recent", 13.9)):
        seen = frozen.at - timedelta(days=days)
        WorkerHeartbeat.objects.create(worker=name, seen_at=seen, started_at=seen)

    prune()

    assert list(WorkerHeartbeat.objects.values_list("worker", flat=True)) == ["recent"]
