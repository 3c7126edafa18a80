"""Ports for the measurements that need no job: nothing is owed, or a head that stands still until it is killed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from maintenance.ports import InertRuntime, RecoveryReport, Work

INERT = {"RUNTIME": "maintenance.ports.InertRuntime", "LEDGER": "maintenance.ports.InertLedger"}
STALLED = {"RUNTIME": "benchmarks.ports.StallsOnce", "LEDGER": "maintenance.ports.InertLedger"}

STALL_SECONDS = 60.0


class StallsOnce(InertRuntime):
    """The first pass of a thread stands still until its process is killed; the next one does nothing."""

    inert = False

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        """Nothing to repair."""
        del work
        return ()

    def process_head(self, work: Work) -> int:
        """Waits in the first pass for a kill that interrupts it."""
        if work.epoch == 1:
            time.sleep(STALL_SECONDS)
        return 0
