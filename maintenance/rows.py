"""The locked row: read under its lock, changed in memory, written once.

`FOR NO KEY UPDATE`, so that rows of other tables may still reference the thread. SQLite has no row locks: its
write transaction (`BEGIN IMMEDIATE`) is the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Value
from django.db.models.functions import Coalesce, Greatest

from maintenance import clock, hotpath
from maintenance.errors import UnsupportedSchema
from maintenance.models import SCHEMA_VERSION, PassRun, ThreadMaintenance

_TRACKED = tuple(f.attname for f in ThreadMaintenance._meta.concrete_fields if not f.primary_key)  # noqa: SLF001
_INSERTED = {
    "thread_id",
    "dirty",
    "alarm_at",
    "alarm_seq",
    "hint_seq",
    "hint_at",
    "hint_attempts",
    "updated_at",
}
NO_DELAY = timedelta()


@dataclass(slots=True)
class Locked:
    """A row whose lock this transaction holds, and the time at which it got it."""

    row: ThreadMaintenance
    now: datetime
    ended: PassRun | None = None
    """The end of a pass, to be written together with the row."""
    _stored: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stored = {name: getattr(self.row, name) for name in _TRACKED}

    def changes(self) -> dict[str, Any]:
        """The columns that differ from what is stored."""
        return {name: value for name in _TRACKED if (value := getattr(self.row, name)) != self._stored[name]}

    def save(self) -> bool:
        """Writes what changed and the end of the pass, if there is one; whether there was anything to write."""
        changes = self.changes()
        if not changes and self.ended is None:
            return False
        changes["updated_at"] = self.row.updated_at = self.now
        if hotpath.serves():
            hotpath.write(self.row.pk, changes, self.ended)
        else:
            _plain_write(self.row.pk, changes, self.ended)
        self.ended = None
        self._stored.update(changes)
        return True


def lock(thread_id: str, operation: str, *, relaxed: bool = False) -> Locked | None:
    """Locks the row of `thread_id`, or returns `None` if there is none. Must run inside a transaction.

    `relaxed` makes the surrounding transaction commit asynchronously (PostgreSQL); only the outermost
    transaction may ask for it, and only where losing the commit in a database crash is harmless.
    Raises `UnsupportedSchema` for a row of another layout.
    """
    found = hotpath.lock(thread_id, relaxed=relaxed) if hotpath.serves() else _plain_lock(thread_id)
    if found is None:
        return None
    row, now = found
    if row.schema_version != SCHEMA_VERSION:
        raise UnsupportedSchema(operation, f"the row has schema version {row.schema_version}, this release reads 1")
    return Locked(row, now)


def commit_synchronously() -> None:
    """Takes back `relaxed` for the surrounding transaction: it commits as the connection is configured to."""
    if hotpath.serves():
        hotpath.commit_synchronously()


def lock_or_create(thread_id: str, operation: str, *, delay: timedelta = NO_DELAY, relaxed: bool = False) -> Locked:
    """As `lock`; a missing row is made with the bootstrap generations and its slot at `now + delay`."""
    locked = lock(thread_id, operation, relaxed=relaxed)
    if locked is None:
        insert(thread_id, dirty=1, delay=delay)
        locked = lock(thread_id, operation, relaxed=relaxed)
    if locked is None:
        raise UnsupportedSchema(operation, "the row vanished while it was being made; do not delete rows in use")
    return locked


def insert(thread_id: str, *, dirty: int, delay: timedelta, hinted: bool = False) -> datetime | None:
    """Makes the row unless another transaction has, armed at `now + delay`; returns that now if it is ours.

    `hinted` marks the slot as handed over: the caller sends the hint after commit.
    """
    if hotpath.serves():
        return hotpath.insert(thread_id, dirty=dirty, delay=delay, hinted=hinted)
    now = clock.now()
    made = ThreadMaintenance(thread_id=thread_id, dirty=dirty, alarm_at=now + delay, alarm_seq=1, updated_at=now)
    if hinted:
        made.hint_seq, made.hint_at, made.hint_attempts = 1, now, 1
    return now if _insert_if_absent(made) else None


def extend_mutating(thread_id: str, until: datetime) -> None:
    """Records on the row that a mutation is in flight until then; the caller holds the row's lock."""
    ThreadMaintenance.objects.filter(pk=thread_id).update(
        mutating_until=Greatest(Coalesce("mutating_until", Value(until)), Value(until))
    )


def _insert_if_absent(made: ThreadMaintenance) -> bool:
    fields = [f for f in ThreadMaintenance._meta.concrete_fields if f.attname in _INSERTED]  # noqa: SLF001
    values = [f.get_db_prep_save(getattr(made, f.attname), connection) for f in fields]
    columns = ", ".join(f.attname for f in fields)
    marks = ", ".join(["%s"] * len(fields))
    table = ThreadMaintenance._meta.db_table  # noqa: SLF001
    with connection.cursor() as cursor:
        # The ORM's `ignore_conflicts` does not say whether the row was inserted; the row count does.
        cursor.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING", values)  # noqa: S608
        return bool(cursor.rowcount == 1)


def _plain_write(thread_id: str, changes: dict[str, Any], ended: PassRun | None) -> None:
    ThreadMaintenance.objects.filter(pk=thread_id).update(**changes)
    if ended is not None:
        ended.save(force_insert=True)


def _plain_lock(thread_id: str) -> tuple[ThreadMaintenance, datetime] | None:
    row = ThreadMaintenance.objects.select_for_update(no_key=True).filter(pk=thread_id).first()
    return None if row is None else (row, clock.now())
