"""The control tick of agents. What a worker does for a thread comes by `maintenance.run_pass` alone."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from agents import metrics
from agents.beat import OBLIGATIONS
from agents.operations.obligations import BlockedOn, Severity, Tally, tally
from maintenance import connections


@shared_task(name=OBLIGATIONS, acks_late=True, reject_on_worker_lost=True, ignore_result=True, serializer="json")
def measure_obligations(**_: Any) -> int:
    """Sets the gauges to what is owed now, with the default thresholds; the number of unsettled submissions."""
    connections.freshen()
    found = tally()
    for blocked_on in BlockedOn:
        # Those of which there is none any more go back to zero.
        kinds = {severity: found.get((blocked_on, severity), Tally()) for severity in Severity}
        for severity, kind in kinds.items():
            metrics.obligations.labels(blocked_on, severity).set(kind.count)
        oldest = max(kind.oldest_seconds for kind in kinds.values())
        metrics.oldest_obligation.labels(blocked_on).set(oldest)
    return sum(kind.count for kind in found.values())
