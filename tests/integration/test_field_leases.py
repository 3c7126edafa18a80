"""Failures that others reported: who holds a thread for how long, and what starting up may do (F9, G4, Q4, Q6)."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from maintenance import clock, operations
from maintenance.delivery import Outcome
from maintenance.models import OperatorAction, PassRun, ThreadMaintenance
from maintenance.ports import Work
from maintenance.testing import deliver, run_due_passes
from tests.arrivals import lease_of_another
from tests.concurrency import wait_until
from tests.factories import make_row, numbers, row_of
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database

SECOND = timedelta(seconds=1)


def test_g4_a_pass_that_stalls_before_its_first_step_keeps_its_thread(
    stage: Stage, sent: list[Hint], settings: Settings
) -> None:
    """Renewal begins with the claim: setting up may take longer than a lease lives."""
    settings.MAINTENANCE = {"LEASE_TTL_MS": 1_500, "LEASE_RENEWAL_MS": 300, "LEASE_SELF_CANCEL_MS": 1_200}
    seen: list[Outcome] = []

    def stall(_: Work) -> None:
        expired_at = row_of().lease_expires_at
        assert expired_at is not None
        wait_until(lambda: clock.now() > expired_at + 0.75 * SECOND, "one and a half leases have gone by")
        seen.append(deliver("t", forced=True).outcome)

    stage.runtime.on_recovery = stall
    make_row(4, 3, 0, 0)

    assert deliver("t").outcome is Outcome.RAN
    assert seen == [Outcome.BUSY]
    assert row_of().lease_epoch == 1


@pytest.mark.parametrize(("ttl_ms", "left"), [(30_000, 300 * SECOND), (300_000, 30 * SECOND)])
def test_q4_each_lease_is_judged_by_the_expiry_that_its_owner_stored(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], settings: Settings, ttl_ms: int, left: timedelta
) -> None:
    """Workers of two releases may be configured otherwise; who looks does not apply a lifetime of its own."""
    settings.MAINTENANCE = {"LEASE_TTL_MS": ttl_ms}
    make_row(4, 3, 0, 0, **lease_of_another(left=left))

    frozen.at += left - SECOND
    assert deliver("t").outcome is Outcome.BUSY
    frozen.at += SECOND
    assert deliver("t").outcome is Outcome.RAN


def test_q6_asking_twenty_times_for_a_pass_around_its_time_leaves_one_alarm(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    ahead = frozen.at + 60 * SECOND
    stage.messages.inert, stage.messages.deadline = False, ahead
    make_row(4, 4, 0, 100)
    stale = row_of()
    for _ in range(20):
        assert operations.wake("t", actor="ada", reason="now") in {True, False}
        frozen.at += 0.01 * SECOND
        run_due_passes()

    assert ThreadMaintenance.objects.count() == 1
    assert row_of().alarm_at == ahead
    assert row_of().alarm_seq > stale.alarm_seq
    assert OperatorAction.objects.filter(action="wake").count() == 20
    runs = PassRun.objects.count()
    frozen.at = ahead
    stage.messages.deadline = None
    run_due_passes()
    assert PassRun.objects.count() == runs + 1
    assert numbers(ahead) == (4, 4, 0, None)


def test_f9_starting_up_opens_no_connection_of_the_librarys_own(tmp_path: Path) -> None:
    """A pool that is opened before a worker forks would be shared by its children."""
    program = (
        "import django; django.setup()\n"
        "import agents.api, maintenance.api, maintenance.tasks, maintenance.bootstep\n"
        "from django.db import connections\n"
        "assert all(connection.connection is None for connection in connections.all(initialized_only=True))\n"
        "import threading; assert threading.active_count() == 1, threading.enumerate()\n"
    )
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": "postgres://nobody@127.0.0.1:1/nowhere",
        "SECRET_KEY": "x",
        "WAKEFUL_VAR": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
