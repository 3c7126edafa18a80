"""From the slot to the broker: a hint, after the commit, bounded in time, that may be lost.

The marks on the row (`hint_seq`, `hint_at`, `hint_attempts`) say that a hand-over was tried, never that it
arrived. They are written in the transaction that changed the slot; the sweep compares them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, transaction
from django.utils import timezone

from maintenance import failpoints, metrics, spans
from maintenance.conf import get_settings
from maintenance.errors import INTERRUPTIONS, kind_of
from maintenance.models import ThreadMaintenance
from maintenance.rows import Locked

log = structlog.get_logger("wakeful.maintenance")

MESSAGE_VERSION = 1

RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.05}
"""Seconds. One quick retry on a stale connection; anything longer would make callers wait for a dead broker."""

BREAKER_SECONDS = 10.0
"""After a failed publish this process does not try again for so long; the sweep delivers meanwhile."""

_closed_until = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """One message to be sent: which slot of which thread, and when it is due (`None`: at once)."""

    thread_id: str
    seq: int
    eta: datetime | None = None
    countdown: timedelta | None = None
    """Instead of an eta, for a worker whose clock disagrees with the database's."""
    trigger: str = "alarm"
    hops: int = 0
    trace: str | None = field(default_factory=spans.here)
    """The trace context of what moved the slot, or of the sweep that found it; the pass links to it."""


def mark(locked: Locked, *, trigger: str = "alarm") -> Hint | None:
    """Marks the slot as handed over and returns the hint owed after commit.

    `None` if nobody is to be told: no slot, a live lease hides it, it lies beyond the horizon, the thread is
    paused or quarantined, or this very slot was handed over before and that hand-over is not yet stale.
    """
    row, now = locked.row, locked.now
    if row.alarm_at is None or row.paused_at or row.quarantined_at or row.has_live_lease(now):
        return None
    if row.alarm_at > now + get_settings().dispatch_horizon:
        return None
    if row.hint_seq == row.alarm_seq and not is_stale(row, now):
        return None
    row.hint_seq, row.hint_at, row.hint_attempts = row.alarm_seq, now, 1
    return hint_for(row.thread_id, row.alarm_seq, row.alarm_at, now, trigger=trigger)


def is_stale(row: ThreadMaintenance, now: datetime) -> bool:
    """Whether a slot long due was handed over so long ago that the message is presumably lost."""
    before = now - get_settings().sweep_grace
    return row.alarm_at is not None and row.alarm_at <= before and (row.hint_at is None or row.hint_at <= before)


def hint_for(thread_id: str, seq: int, at: datetime, now: datetime, *, trigger: str) -> Hint:
    """The hint for a slot: with an eta if the deadline lies ahead, without if it is due."""
    return Hint(thread_id=thread_id, seq=seq, eta=at if at > now else None, trigger=trigger)


def after_commit(hint: Hint | None) -> None:
    """Publishes when (and only if) the surrounding transaction has committed."""
    if hint is not None:
        transaction.on_commit(partial(publish_or_forget, hint))


def publish_or_forget(hint: Hint) -> None:
    """Publishes; if the broker does not take it, unmarks the slot so that the next sweep tries at once.

    Raises nothing but an interruption, so a hook that it runs in cannot fail the operation that committed, nor
    keep later hooks of the same transaction from running.
    """
    if not publish(hint):
        forget(hint)


def publish(hint: Hint) -> bool:
    """Hands one hint to the broker; never raises. `False`: not taken (logged and counted)."""
    if time.monotonic() < _closed_until:
        metrics.dispatch_failures.inc()
        return False
    try:
        with spans.span("maintenance.dispatch", thread=hint.thread_id, seq=hint.seq, trigger=hint.trigger):
            failpoints.hit("dispatch:before-publish", hint.thread_id)
            send(hint)
            failpoints.hit("dispatch:after-publish", hint.thread_id)
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - a lost hint must never fail the operation that committed
        _open_breaker()
        metrics.dispatch_failures.inc()
        log.warning("alarm.publish_failed", thread=hint.thread_id, seq=hint.seq, kind=kind_of(error))
        return False
    return True


def forget(hint: Hint) -> None:
    """Unmarks a slot whose hint was not taken. Best effort: without it the sweep waits for its grace."""
    try:
        ThreadMaintenance.objects.filter(pk=hint.thread_id, hint_seq=hint.seq).update(hint_seq=None)
    except (DatabaseError, InterfaceError) as error:
        log.warning("alarm.unmark_failed", thread=hint.thread_id, kind=kind_of(error))


def close_breaker() -> None:
    """Lets this process publish again at once."""
    global _closed_until  # noqa: PLW0603 - one breaker per process
    _closed_until = 0.0


def _open_breaker() -> None:
    global _closed_until  # noqa: PLW0603
    _closed_until = time.monotonic() + BREAKER_SECONDS


def _send_by_celery(hint: Hint) -> None:
    # The task's module needs this one to send follow-ups, so it is looked up when it is used.
    from maintenance.tasks import run_pass  # noqa: PLC0415

    # Celery would put the time limits of this process into the message, and there they win over the worker's own.
    options: dict[str, Any] = {"time_limit": None, "soft_time_limit": None}
    options |= {"queue": get_settings().queue, "retry": True, "retry_policy": RETRY_POLICY}
    if hint.eta is not None:
        options["eta"] = hint.eta if timezone.is_aware(hint.eta) else timezone.make_aware(hint.eta)
    elif hint.countdown is not None:
        options["countdown"] = hint.countdown.total_seconds()
    run_pass.apply_async(
        args=(hint.thread_id, hint.seq),
        kwargs=_message(hint),
        **options,
    )


def _message(hint: Hint) -> dict[str, Any]:
    message: dict[str, Any] = {"v": MESSAGE_VERSION, "trigger": hint.trigger, "hops": hint.hops}
    return message if hint.trace is None else {**message, "trace": hint.trace}


send: Callable[[Hint], None] = _send_by_celery
"""How a hint reaches the broker; tests put their own transport here."""
