"""Stopping everything: every thread that is armed is paused, in batches, and later exactly those are let go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from django.db import transaction
from django.db.models import QuerySet

from maintenance import clock, operations, status
from maintenance.errors import SET_ALARM, DurableAlarmError, alarm_operation
from maintenance.models import SCHEMA_VERSION, OperatorAction, ThreadMaintenance
from maintenance.rows import Locked
from maintenance.wording import counted

BATCH = 500
TRIES = 6
"""How often rows that another transaction has locked are looked at again; the waits between double from 0.1 s."""

EVERYTHING = "everything"
"""Key of the audit rows of `pause`, so that `resume` knows what it may let go on."""


def pause(*, actor: str, reason: str) -> int:
    """Pauses every thread that is armed and not held back, the earliest due first; how many that were.

    Passes that run come to their end, and nothing follows them. A thread without an alarm is left alone, also if it is
    given work later. May be repeated. Raises `DurableAlarmError` if rows stay locked by others for seconds.
    """
    operations.require_author("pause", actor, reason)
    total = 0
    for tried in range(TRIES):
        while paused := _pause_batch(actor, reason):
            total += paused
        if not _armed().exists():
            return total
        time.sleep(0.1 * 2**tried)
    done = counted(total, "thread was", "threads were")
    raise DurableAlarmError(SET_ALARM, f"{done} paused; other transactions hold the rest, so run it again")


def resume(*, actor: str, reason: str) -> int:
    """Lets go on what `pause` holds back, and nothing that was paused or parked for a reason of its own; how many.

    May be repeated. What is due is handed over by the next sweep. Raises `DurableAlarmError`.
    """
    operations.require_author("resume", actor, reason)
    total, after = 0, ""
    while batch := _resume_batch(after, actor, reason):
        total, after = total + batch[1], batch[0]
    return total


def _armed() -> QuerySet[ThreadMaintenance]:
    return ThreadMaintenance.objects.filter(status.RUNNABLE, schema_version=SCHEMA_VERSION)


def _pause_batch(actor: str, reason: str) -> int:
    # Race closed: a begin or finish that read its row unpaused would write over ours; it waits for these locks. What
    # is locked already is passed by, so nobody waits for two rows, and is found by a later batch.
    with alarm_operation(SET_ALARM), transaction.atomic():
        rows = list(_armed().order_by("alarm_at").select_for_update(skip_locked=True, no_key=True)[:BATCH])
        _change(rows, "pause", operations.hold, actor, reason, **{EVERYTHING: True})
    return len(rows)


def _resume_batch(after: str, actor: str, reason: str) -> tuple[str, int] | None:
    """The last thread that was looked at and how many go on; `None` at the end."""
    # Race closed: a person who pauses a thread after we saw what holds it back; that is read under these locks. They
    # are taken in the order of ids, as after a failover; all others lock one row or skip what is locked: no deadlock.
    with alarm_operation(SET_ALARM), transaction.atomic():
        paused = ThreadMaintenance.objects.filter(status.PAUSED, pk__gt=after, schema_version=SCHEMA_VERSION)
        rows = list(paused.order_by("pk").select_for_update(no_key=True)[:BATCH])
        if not rows:
            return None
        stopped = _paused_with_everything([row.pk for row in rows])
        mine = [row for row in rows if row.pk in stopped]
        _change(mine, "resume", operations.let_go_on, actor, reason)
    return rows[-1].pk, len(mine)


def _change(
    rows: Iterable[ThreadMaintenance],
    action: str,
    change: Callable[[Locked], bool],
    actor: str,
    reason: str,
    **more: object,
) -> None:
    """Does the same to each locked row and writes them, and an audit row for each, in two statements."""
    now, changed, notes = clock.now(), [], []
    for row in rows:
        locked, before = Locked(row, now), operations.shown(row)
        change(locked)
        row.updated_at = now
        changed.append(row)
        notes.append(operations.audited(locked, action, actor, reason, before, **more))
    ThreadMaintenance.objects.bulk_update(changed, ["paused_at", "hint_seq", "updated_at"])
    OperatorAction.objects.bulk_create(notes)


def _paused_with_everything(thread_ids: Sequence[str]) -> set[str]:
    """Those of the threads whose newest pause was not meant for them alone."""
    pauses = OperatorAction.objects.filter(thread_id__in=thread_ids, action="pause").order_by("id")
    newest = dict(pauses.values_list("thread_id", "after"))
    return {thread_id for thread_id, after in newest.items() if after.get(EVERYTHING)}
