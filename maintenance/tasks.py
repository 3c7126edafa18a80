"""The Celery entry: `run_pass` and the control ticks. Names and arguments are a stable contract.

No task uses Celery's own retry, expiry of hints, revoke or a result: the row carries all of that.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import structlog
from celery import shared_task

from maintenance import connections, ensure, metrics, passes, reaper, spans, sweep
from maintenance.conf import get_settings
from maintenance.delivery import FORCED, IN_PLACE, Delivery, Outcome
from maintenance.dispatch import MESSAGE_VERSION
from maintenance.errors import PassFailed
from maintenance.identity import is_thread_id
from maintenance.passes import Result

log = structlog.get_logger("wakeful.maintenance")

_OPTIONS: dict[str, Any] = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "ignore_result": True,
    "serializer": "json",
}


@shared_task(name="maintenance.run_pass", **_OPTIONS)
def run_pass(thread_id: Any = None, seq: Any = None, *surplus: Any, **message: Any) -> str:
    """Answers a delivery for slot `seq` of a thread; goes on in place while the next pass is due at once.

    Idempotent: the row decides, a lost, late, early or doubled message changes nothing but latency. Keywords of
    newer releases are ignored. Raises `PassFailed` if the pass failed, so that monitoring sees it.
    """
    delivery = None if surplus else _decoded(thread_id, seq, message)
    if delivery is None:
        metrics.deliveries.labels(Outcome.MALFORMED).inc()
        log.warning("pass.malformed")
        return Outcome.MALFORMED
    # The connection is kept between tasks; one that the server closed meanwhile is replaced here.
    connections.freshen()
    return _run(delivery, message.get("trace"))


def _decoded(thread_id: Any, seq: Any, message: dict[str, Any]) -> Delivery | None:
    hops, trigger = message.get("hops", 0), message.get("trigger", "alarm")
    if message.get("v", MESSAGE_VERSION) != MESSAGE_VERSION:
        return None
    if not is_thread_id(thread_id):
        return None
    if not _is_count(seq) or not _is_count(hops) or not isinstance(trigger, str):
        return None
    return Delivery(thread_id=thread_id, seq=seq, trigger=trigger[:20], hops=hops, forced=trigger == FORCED)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _run(delivery: Delivery, cause: Any) -> str:
    """`cause`: the trace context of what moved the slot."""
    settings = get_settings()
    until = time.monotonic() + settings.in_place.total_seconds()
    left = settings.in_place_passes - 1

    def may_go_on() -> bool:
        return left > 0 and time.monotonic() < until

    with spans.of_pass(link=cause, thread=delivery.thread_id, seq=delivery.seq, trigger=delivery.trigger) as span:
        result, cause = _told(span, passes.deliver(delivery, may_go_on=may_go_on)), spans.here()
    while result.next is not None:
        left -= 1
        with spans.of_pass(link=cause, thread=delivery.thread_id, trigger=IN_PLACE) as span:
            result, cause = _told(span, passes.go_on(result.next, may_go_on=may_go_on)), spans.here()
    if result.failed:
        raise PassFailed(result.error) from None
    return result.outcome


def _told(span: spans.Span, result: Result) -> Result:
    if span.is_kept:
        span.note(outcome=result.outcome, **({} if result.report is None else asdict(result.report)))
        if result.failed:
            span.fail(result.outcome)
    return result


@shared_task(name="maintenance.sweep", **_OPTIONS)
def sweep_due(**_: Any) -> int:
    """One tick of the sweep and the reaper; the number of hints handed over."""
    connections.freshen()
    reaper.reap()
    return sweep.sweep()


@shared_task(name="maintenance.ensure_audit", **_OPTIONS)
def ensure_audit(**_: Any) -> int:
    """Re-arms threads with a pending deadline and no slot; the number re-armed."""
    connections.freshen()
    return ensure.audit()


@shared_task(name="maintenance.prune", **_OPTIONS)
def prune(**_: Any) -> int:
    """Deletes the history of passes beyond its time; the number of rows deleted."""
    connections.freshen()
    return ensure.prune()
