"""What a person may do to a thread: row writes, each with a reason and an audit row in the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db import transaction

from maintenance import alarm, dispatch, rows
from maintenance.delivery import FORCED
from maintenance.errors import MAX_REASON, SET_ALARM, DurableAlarmError, OperationDenied, alarm_operation, bounded
from maintenance.models import OperatorAction, ThreadMaintenance
from maintenance.rows import Locked

Change = Callable[[Locked], bool]
"""What an operation does to the locked row; whether it did anything."""
Mark = Callable[[Locked], dispatch.Hint | None]
"""Marks the slot as handed over; the hint that is owed after the commit, if any."""

ITSELF = "wakeful"
"""The actor of a pause that nobody asked for: the thread's own pass, or its begin, has parked it."""

GO_ON = ("resume", "release", "force_pass")
"""The actions by which a person says that the thread may go on as it stands."""

AUDITED = ("dirty", "processed", "alarm_seq", "stalls", "failures", "starts_since_finish")


def force_pass(thread_id: str, *, actor: str, reason: str) -> bool:
    """Puts the slot at now and asks a worker for one pass of it, also of a thread that is paused or in quarantine.

    `False` while a pass holds the thread. A thread that is held back stays so: if the message is lost, nobody brings
    that pass. A pause that comes later is stronger.
    """
    return _operate("force_pass", thread_id, actor, reason, _arm_now, _forced_hint)


def note_forced_pass(thread_id: str, *, actor: str, reason: str) -> bool:
    """Writes down a pass that a person is about to force in a process of their own; changes nothing else."""
    return _operate("force_pass", thread_id, actor, reason, _leave, _no_hint)


def wake(thread_id: str, *, actor: str, reason: str) -> bool:
    """Pulls the slot to now; a quiet thread gets one caught-up pass. `False` while a pass holds it.

    It overrides nothing: a thread that is paused or in quarantine waits with its slot.
    """
    return _operate("wake", thread_id, actor, reason, _arm_now)


def pause(thread_id: str, *, actor: str, reason: str) -> bool:
    """Holds the thread's passes back; accepted work is kept. `False` if it was paused."""
    return _operate("pause", thread_id, actor, reason, hold)


def resume(thread_id: str, *, actor: str, reason: str) -> bool:
    """Lets passes go on and hands a due slot over at once. `False` if it was not paused."""
    return _operate("resume", thread_id, actor, reason, let_go_on)


def release(thread_id: str, *, actor: str, reason: str) -> bool:
    """Takes a thread out of quarantine and resets its start count. `False` if it was not in quarantine."""
    return _operate("release", thread_id, actor, reason, _release)


def told_to_go_on(thread_id: str) -> datetime | None:
    """When a person last said that the thread may go on as it stands."""
    said = OperatorAction.objects.filter(thread_id=thread_id, action__in=GO_ON).order_by("-id")
    return said.values_list("created_at", flat=True).first()


def park(locked: Locked, reason: str) -> None:
    """Pauses the locked thread as `pause` does, in the transaction that ends its pass; the caller saves the row.

    One that a person has paused already stays paused since then; the newest reason is told.
    """
    before = shown(locked.row)
    hold(locked)
    audited(locked, "pause", ITSELF, bounded(reason, MAX_REASON), before).save()


def _operate(action: str, thread_id: str, actor: str, reason: str, change: Change, mark: Mark | None = None) -> bool:
    require_author(action, actor, reason)
    # Race closed: a begin or finish between the look and the write; the audit row tells what really was changed.
    with alarm_operation(SET_ALARM), transaction.atomic():
        locked = rows.lock(thread_id, SET_ALARM)
        if locked is None:
            raise DurableAlarmError(SET_ALARM, "there is no such thread; look its id up with: maintenance status")
        before = shown(locked.row)
        changed = change(locked)
        hint = mark(locked) if mark else dispatch.mark(locked, trigger=action)
        locked.save()
        audited(locked, action, actor, reason, before).save()
        dispatch.after_commit(hint)
    return changed


def require_author(action: str, actor: str, reason: str) -> None:
    """Raises `OperationDenied` if somebody acts without saying who and why."""
    if not actor.strip() or not reason.strip():
        raise OperationDenied(f"{action} needs an actor and a reason; both are kept in the audit log")


def audited(
    locked: Locked, action: str, actor: str, reason: str, before: dict[str, object], **more: object
) -> OperatorAction:
    """The audit row of what was done to the locked row, to be stored with it; `before` is what `shown` gave then."""
    return OperatorAction(
        actor=actor[:200],
        action=action,
        thread_id=locked.row.thread_id,
        reason=reason,
        before=before,
        after=shown(locked.row) | more,
        created_at=locked.now,
    )


def _arm_now(locked: Locked) -> bool:
    if locked.row.has_live_lease(locked.now):
        return False
    alarm.keep_earlier(locked.row, locked.now)
    locked.row.hint_seq = None
    return True


def _leave(_: Locked) -> bool:
    return True


def _forced_hint(locked: Locked) -> dispatch.Hint | None:
    row, now = locked.row, locked.now
    if row.has_live_lease(now):
        return None
    row.hint_seq, row.hint_at, row.hint_attempts = row.alarm_seq, now, 1
    return dispatch.Hint(thread_id=row.thread_id, seq=row.alarm_seq, trigger=FORCED)


def _no_hint(_: Locked) -> None:
    return None


def hold(locked: Locked) -> bool:
    """Pauses the locked row; `False` if it was paused."""
    if locked.row.paused_at is not None:
        return False
    locked.row.paused_at = locked.now
    # Takes the hand-over back: a forced pass that was asked for before and has not come must not override this pause.
    locked.row.hint_seq = None
    return True


def let_go_on(locked: Locked) -> bool:
    """Ends the pause of the locked row; `False` if it was not paused."""
    if locked.row.paused_at is None:
        return False
    locked.row.paused_at = None
    locked.row.hint_seq = None
    return True


def _release(locked: Locked) -> bool:
    row = locked.row
    if row.quarantined_at is None:
        return False
    row.quarantined_at, row.quarantine_reason = None, ""
    row.starts_since_finish = row.failures = 0
    row.hint_seq = None
    alarm.keep_earlier(row, locked.now)
    return True


def shown(row: ThreadMaintenance) -> dict[str, object]:
    """What an audit row keeps of a thread."""
    shown: dict[str, object] = {name: getattr(row, name) for name in AUDITED}
    for name in ("alarm_at", "paused_at", "quarantined_at"):
        moment = getattr(row, name)
        shown[name] = None if moment is None else moment.isoformat()
    return shown
