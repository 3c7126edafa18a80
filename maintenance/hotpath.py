"""The statements of the hot path, for PostgreSQL. `rows` and `gate` hold the plain version of each.

In a fused statement only the locked row is current: whatever else it read would come from a snapshot taken
before the lock was granted. So these statements read nothing but the row and the clock, and the clock is read
*after* the lock: the outer query sees the materialised, already locked row.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from maintenance import clock
from maintenance.conf import get_settings
from maintenance.models import PassRun, ThreadMaintenance

_FIELDS = [f.attname for f in ThreadMaintenance._meta.concrete_fields]  # noqa: SLF001
_TABLE = ThreadMaintenance._meta.db_table  # noqa: SLF001
_COLUMNS = ", ".join(f'"{name}"' for name in _FIELDS)
_JSON_AT = _FIELDS.index("last_report")

_LOCK = f"""
    WITH locked AS MATERIALIZED (
        SELECT {_COLUMNS} FROM {_TABLE} WHERE thread_id = %s FOR NO KEY UPDATE
    )
    SELECT locked.*, {{clock}}{{relax}} FROM locked
"""  # noqa: S608 - identifiers of our own model

_BUMP = f"""
    WITH locked AS MATERIALIZED (
        SELECT * FROM {_TABLE} WHERE thread_id = %s AND schema_version = 1 FOR NO KEY UPDATE
    ), timed AS MATERIALIZED (
        SELECT locked.*, {{clock}} AS now FROM locked
    ), slotted AS MATERIALIZED (
        SELECT thread_id, now, dirty + 1 AS dirty, LEAST(alarm_at, now + %s) AS slot,
               (alarm_at IS NULL OR alarm_at > now + %s) AS moved,
               (paused_at IS NULL AND quarantined_at IS NULL
                   AND (lease_expires_at IS NULL OR lease_expires_at <= now)) AS visible,
               (alarm_at <= now - %s AND COALESCE(hint_at <= now - %s, true)) AS stale
          FROM timed
    ), hinted AS MATERIALIZED (
        SELECT slotted.*, visible AND (moved OR COALESCE(stale, false)) AS hinted FROM slotted
    )
    UPDATE {_TABLE} AS t
       SET dirty = s.dirty,
           alarm_at = s.slot,
           alarm_seq = t.alarm_seq + s.moved::int,
           hint_seq = CASE WHEN s.hinted THEN t.alarm_seq + s.moved::int ELSE t.hint_seq END,
           hint_at = CASE WHEN s.hinted THEN s.now ELSE t.hint_at END,
           hint_attempts = CASE WHEN s.hinted THEN 1 ELSE t.hint_attempts END,
           updated_at = s.now
      FROM hinted AS s
     WHERE t.thread_id = s.thread_id
    RETURNING t.dirty, t.alarm_at, t.alarm_seq, s.hinted, s.now
"""  # noqa: S608 - identifiers of our own model

_INSERT = f"""
    INSERT INTO {_TABLE} (thread_id, dirty, alarm_at, alarm_seq, hint_seq, hint_at, hint_attempts, updated_at)
    SELECT %s, %s, c.now + %s, 1, %s, CASE WHEN %s THEN c.now END, %s, c.now
      FROM (SELECT {{clock}} AS now) AS c
        ON CONFLICT DO NOTHING
    RETURNING updated_at
"""  # noqa: S608 - identifiers of our own model

_RUN_TABLE = PassRun._meta.db_table  # noqa: SLF001
_RUN_FIELDS = [f.attname for f in PassRun._meta.concrete_fields if not f.primary_key]  # noqa: SLF001
_NOTE = f"""
    WITH noted AS (
        INSERT INTO {_RUN_TABLE} ({", ".join(f'"{name}"' for name in _RUN_FIELDS)})
        VALUES ({", ".join(["%s"] * len(_RUN_FIELDS))})
    )
"""  # noqa: S608 - identifiers of our own model

_HELD = "thread_id = %s AND lease_token = %s AND lease_epoch = %s"
_PROVE = f"SELECT 1 FROM {_TABLE} WHERE {_HELD} FOR NO KEY UPDATE"  # noqa: S608
_ABSOLVE = f"UPDATE {_TABLE} SET starts_since_finish = 0 WHERE {_HELD}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Bumped:
    """What a bump did: the new generation, the slot, and whether a hint is owed after commit."""

    generation: int
    alarm_at: datetime
    alarm_seq: int
    hinted: bool
    now: datetime


def serves() -> bool:
    """Whether the fused statements are used on this connection."""
    return connection.vendor == "postgresql" and get_settings().fused


def lock(thread_id: str, *, relaxed: bool) -> tuple[ThreadMaintenance, datetime] | None:
    """The locked row and the time after the lock, in one round trip."""
    now_sql, now_params = clock.expression()
    values = _one(_LOCK.format(clock=now_sql, relax=_relax(relaxed)), [thread_id, *now_params])
    if values is None:
        return None
    return _row(values[: len(_FIELDS)]), values[len(_FIELDS)]


def bump(thread_id: str, delay: timedelta) -> Bumped | None:
    """Advances the generation, keeps or pulls the slot to `now + delay` and marks the hand-over.

    `None`: there is no row of our schema. The hand-over is marked only if the slot moved and can be acted on.
    """
    now_sql, now_params = clock.expression()
    grace = get_settings().sweep_grace
    values = _one(_BUMP.format(clock=now_sql), [thread_id, *now_params, delay, delay, grace, grace])
    return None if values is None else Bumped(*values)


def insert(thread_id: str, *, dirty: int, delay: timedelta, hinted: bool) -> datetime | None:
    """Makes the row armed at `now + delay` unless it exists; returns that now if the row is ours."""
    now_sql, now_params = clock.expression()
    attempts = 1 if hinted else 0
    params = [thread_id, dirty, delay, attempts or None, hinted, attempts, *now_params]
    values = _one(_INSERT.format(clock=now_sql), params)
    return None if values is None else values[0]


def prove(thread_id: str, token: uuid.UUID, epoch: int, *, absolve: bool) -> bool:
    """Locks the row if it still names this lease; `absolve` resets its start count. A plain read would not fence."""
    with connection.cursor() as cursor:
        cursor.execute(_ABSOLVE if absolve else _PROVE, [thread_id, token, epoch])
        return bool(cursor.rowcount == 1)


def write(thread_id: str, changes: dict[str, Any], ended: PassRun | None) -> None:
    """Updates the row and, in the same statement, notes the end of a pass."""
    note, params = ("", []) if ended is None else (_NOTE, [getattr(ended, name) for name in _RUN_FIELDS])
    sets = ", ".join(f'"{name}" = %s' for name in changes)
    values = [json.dumps(value) if isinstance(value, dict) else value for value in changes.values()]
    with connection.cursor() as cursor:
        cursor.execute(f"{note}UPDATE {_TABLE} SET {sets} WHERE thread_id = %s", [*params, *values, thread_id])  # noqa: S608


def commit_synchronously() -> None:
    """Takes back what `_relax` has set in this transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit TO DEFAULT")


def _relax(relaxed: bool) -> str:
    """Makes the transaction that the statement runs in commit asynchronously."""
    return ", set_config('synchronous_commit', 'off', true)" if relaxed else ""


def _one(sql: str, params: list[Any]) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found: tuple[Any, ...] | None = cursor.fetchone()
        return found


def _row(values: tuple[Any, ...]) -> ThreadMaintenance:
    converted = list(values)
    if isinstance(converted[_JSON_AT], str):
        converted[_JSON_AT] = json.loads(converted[_JSON_AT])
    return ThreadMaintenance.from_db(connection.alias, _FIELDS, converted)
