"""From SIGKILL in the middle of a pass to the begin of the pass that resumes it.

`child`: the pool child that runs the pass is killed; its worker lives, proves the death and hands the thread over.
`host`: all processes of one worker are killed and its lease is given to a machine that nobody can look into, so
that only expiry can tell. A second worker stands by on the same lease, scaled down from 30 s to 3 s.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from benchmarks import ports, workers
from benchmarks.field import contest
from benchmarks.meters import clock_offset, wait_until
from benchmarks.options import Options
from benchmarks.report import Outcome, Target
from benchmarks.stand import Stand
from benchmarks.workers import Crew
from config.celery import app
from maintenance import owner
from maintenance.api import mutation
from maintenance.conf import get_settings
from maintenance.models import PassRun, ThreadMaintenance

NAME = "kills"
TITLE = "from a kill to the resumed pass"

LEASE = timedelta(seconds=3)
SCALED = {"LEASE_TTL_MS": 3_000, "LEASE_RENEWAL_MS": 1_000, "LEASE_SELF_CANCEL_MS": 2_400, "TEST_TIME_SCALE": 10}
"""A tenth of the lease of production."""
ELSEWHERE = "00000000-gone:1:1:1"
"""An owner on a machine that is not here."""


def run(stand: Stand, options: Options) -> Outcome:
    """One kill of each kind in each round."""
    contest.empty_tables()
    stand.empty_broker()
    with _crew(stand, ports.STALLED) as crew:
        child = [_kill_child(crew, f"child-{number}") for number in range(options.rounds)]
    host = [_kill_host(stand, f"host-{number}") for number in range(options.rounds)]
    outcome = Outcome(NAME, TITLE)
    outcome.add("child killed", child, "s", Target(2))
    sweep = get_settings().sweep_interval
    outcome.add("host gone, lease of 3 s", host, "s", Target((LEASE + sweep).total_seconds() + 1))
    return outcome


@contextmanager
def _crew(stand: Stand, maintenance: Mapping[str, object], number: int = 0) -> Iterator[Crew]:
    settings = get_settings()
    environment = {"BENCH_MAINTENANCE": json.dumps(maintenance)}
    with workers.hired(
        stand,
        "config",
        app,
        idle_queue=settings.control_queue,
        workers=1,
        concurrency=2,
        first=number,
        environment=environment,
    ) as crew:
        crew.open(settings.queue)
        yield crew


def _kill_child(crew: Crew, thread_id: str) -> float:
    offset = clock_offset()
    pid = _start_pass(thread_id)
    if pid not in crew.pids():
        message = f"the pass runs in process {pid}, which is none of the crew's"
        raise RuntimeError(message)
    killed = datetime.now(UTC) + offset
    os.kill(pid, signal.SIGKILL)
    return _resumed_after(thread_id, killed)


def _kill_host(stand: Stand, thread_id: str) -> float:
    offset = clock_offset()
    scaled = {**ports.STALLED, **SCALED}
    with _crew(stand, scaled) as doomed:
        _start_pass(thread_id)
        with _crew(stand, scaled, number=1):
            ThreadMaintenance.objects.filter(pk=thread_id).update(lease_owner=ELSEWHERE)
            killed = datetime.now(UTC) + offset
            doomed.kill()
            return _resumed_after(thread_id, killed)


def _start_pass(thread_id: str) -> int:
    """Wakes a fresh thread and returns the process that its pass stands still in."""
    with mutation(thread_id):
        pass
    row = ThreadMaintenance.objects.filter(pk=thread_id, lease_token__isnull=False)
    wait_until(row.exists, seconds=30, what="the pass to begin")
    holder = owner.parse(row.get().lease_owner)
    if holder is None:
        message = "the pass runs in a process without a readable identity; this needs /proc"
        raise RuntimeError(message)
    return holder.pid


def _resumed_after(thread_id: str, killed: datetime) -> float:
    resumed = PassRun.objects.filter(thread_id=thread_id, epoch=2)
    wait_until(resumed.exists, seconds=90, what="the resumed pass")
    return (resumed.get().started_at - killed).total_seconds()
