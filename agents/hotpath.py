"""The statements of the hot path: two reads for every database, and the fused writes for PostgreSQL.

Of the writes `log`, `ledger` and `admission` hold the plain version. Each runs after a statement of the same
transaction has locked the thread's maintenance row, so what it reads of the thread, its queue and its log is
current; it writes several rows or none. The reads are here because they run in every pass, and putting a query of
ours together costs Django ten times what the database needs for the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import connection

from agents.models import AbortIntent, Attempt, LogBatch, LogRecord, Submission, Thread
from agents.states import CLAIMABLE, State, sources
from maintenance import clock, owner
from maintenance.hotpath import serves

if TYPE_CHECKING:
    from agents.log import Sealed

THREAD, SUBMISSION, ATTEMPT, BATCH, RECORD, ABORT = (
    model._meta.db_table  # noqa: SLF001 - the names of our own tables
    for model in (Thread, Submission, Attempt, LogBatch, LogRecord, AbortIntent)
)


OPEN = f"NOT (state = '{State.SETTLED}')"
"""Unsettled, in the words of the partial index: SQLite uses it only for these."""


def _listed(states: list[str]) -> str:
    return ", ".join(f"'{state}'" for state in states)


_HEAD = f"""
    SELECT state, (SELECT count(*) FROM {SUBMISSION} WHERE thread_id = %s AND {OPEN})
      FROM {SUBMISSION}
     WHERE thread_id = %s AND {OPEN} ORDER BY queue_sequence LIMIT 1
"""  # noqa: S608 - identifiers of our own models


def head(thread_id: str) -> tuple[str, int] | None:
    """The state of the head and the number of unsettled submissions; `None` if nothing is owed."""
    row = _one(_HEAD, [thread_id, thread_id])
    return None if row is None else (row[0], row[1])


_QUEUED = f"""
    SELECT s.id, s.queue_sequence,
           s.state = '{State.READY}' AND s.first_sequence IS NULL AND a.submission_id IS NULL
      FROM {SUBMISSION} AS s LEFT JOIN {ABORT} AS a ON a.submission_id = s.id
     WHERE s.thread_id = %s AND NOT (s.state = '{State.SETTLED}') ORDER BY s.queue_sequence
"""  # noqa: S608 - identifiers of our own models


def queued(thread_id: str) -> list[tuple[UUID, int]] | None:
    """Id and place of every unsettled submission, in queue order, if each of them just waits for its turn.

    `None` if one was begun, waits for something else, or is to be aborted: then recovery has to look closer.
    """
    with connection.cursor() as cursor:
        cursor.execute(_QUEUED, [thread_id])
        rows = cursor.fetchall()
    if not all(waits for _, _, waits in rows):
        return None
    return [(pk if isinstance(pk, UUID) else UUID(pk), place) for pk, place, _ in rows]


def appending(condition: str = "true") -> str:
    """The parts of a statement that append a sealed batch, if the log ends where it presumes and its id is new."""
    return f"""batch AS (
        INSERT INTO {BATCH} (thread_id, batch_id, first_sequence, last_sequence, producer, epoch,
                             content_digest, previous_digest, digest)
        SELECT thread_id, %(batch_id)s, tail_sequence + 1, %(last)s, %(producer)s, %(epoch)s,
               %(content)s, tail_digest, %(digest)s
          FROM {THREAD}
         WHERE thread_id = %(thread)s AND tail_sequence = %(sequence)s AND tail_digest = %(previous)s AND {condition}
            ON CONFLICT (thread_id, batch_id) DO NOTHING
        RETURNING id
    ), moved AS (
        UPDATE {THREAD} SET tail_sequence = %(last)s, tail_digest = %(digest)s
          FROM batch WHERE thread_id = %(thread)s
    ), written AS (
        INSERT INTO {RECORD} (thread_id, sequence, batch_id, record_id, family, text)
        SELECT %(thread)s, %(sequence)s + r.place, batch.id, r.record_id, r.family, r.text
          FROM batch, unnest(%(ids)b::text[], %(families)b::text[], %(texts)b::text[])
                      WITH ORDINALITY AS r (record_id, family, text, place)
            ON CONFLICT DO NOTHING
        RETURNING 1
    )"""  # noqa: S608 - identifiers of our own models


_APPEND = f"WITH {appending()} SELECT (SELECT count(*) FROM written) FROM batch"  # noqa: S608


def append(thread_id: str, sealed: Sealed) -> int | None:
    """Writes a sealed batch if the log ends where it presumes and its id is new; the number of records written.

    `None`: nothing was written. Fewer records than the batch holds: a record id is taken, roll back.
    """
    row = _one(_APPEND, sealed_parameters(thread_id, sealed))
    return None if row is None else int(row[0])


def sealed_parameters(thread_id: str, sealed: Sealed) -> dict[str, Any]:
    """The parameters of `appending`."""
    batch = sealed.batch
    return {
        "thread": thread_id,
        "batch_id": batch.batch_id,
        "sequence": sealed.before.sequence,
        "previous": sealed.before.digest,
        "last": sealed.after.sequence,
        "digest": sealed.after.digest,
        "producer": sealed.producer.name,
        "epoch": sealed.producer.epoch,
        "content": batch.content_digest,
        "ids": [record.record_id for record in batch.records],
        "families": [record.payload.family for record in batch.records],
        "texts": [str(text) for text in sealed.texts],
    }


@dataclass(frozen=True, slots=True)
class Claimed:
    """A head that this pass has claimed, and the attempt that begins with it."""

    submission_id: UUID
    queue_sequence: int
    principal: str
    agent: str
    input: str
    number: int
    """Which attempt of the submission, from 1."""
    first_sequence: int
    input_applied: bool
    """Its input was in the log before this claim: the run is resumed."""
    tail_sequence: int
    tail_digest: str
    started_at: datetime


_CLAIM = f"""
    WITH head AS (
        SELECT queue_sequence, state FROM {SUBMISSION}
         WHERE thread_id = %(thread)s AND {OPEN} ORDER BY queue_sequence LIMIT 1
    ), claimed AS (
        UPDATE {SUBMISSION} AS s
           SET state = '{State.INPUT_APPLIED}',
               attempts = s.attempts + 1,
               first_sequence = COALESCE(s.first_sequence, t.tail_sequence + 1)
          FROM head, {THREAD} AS t
         WHERE s.thread_id = %(thread)s AND s.queue_sequence = head.queue_sequence
           AND s.state IN ({_listed(sorted(CLAIMABLE))}) AND t.thread_id = %(thread)s
        RETURNING s.id, s.queue_sequence, s.principal, s.agent, s.input, s.attempts, s.first_sequence,
                  head.state = '{State.INPUT_APPLIED}' AS resumed, t.tail_sequence, t.tail_digest
    ), begun AS (
        INSERT INTO {ATTEMPT} (submission_id, number, epoch, owner, began_after, started_at)
        SELECT id, attempts, %(epoch)s, %(owner)s, GREATEST(tail_sequence, first_sequence), {{clock}} FROM claimed
        RETURNING started_at
    )
    SELECT claimed.*, begun.started_at FROM claimed, begun
"""  # noqa: S608 - identifiers of our own models


def claim(thread_id: str, epoch: int) -> Claimed | None:
    """Claims the head and begins an attempt; `None` if there is no head or it cannot be claimed."""
    row = timed(_CLAIM, {"thread": thread_id, "epoch": epoch, "owner": owner.current()})
    return None if row is None else Claimed(*row)


def settling(source: str = "") -> str:
    """The parts of a statement that make the row of a run final and end its attempt; `source` is what it waits for."""
    return f"""settled AS (
        UPDATE {SUBMISSION} SET state = '{State.SETTLED}', outcome = %(outcome)s, settled_at = {{clock}}
          {source and f"FROM {source}"}
         WHERE {SUBMISSION}.id = %(submission)s AND state IN ({_listed(sources("settle"))})
        RETURNING {SUBMISSION}.id, settled_at
    ), ended AS (
        UPDATE {ATTEMPT} SET ending = %(ending)s, ended_at = settled.settled_at
          FROM settled WHERE submission_id = settled.id AND number = %(number)s
    )"""  # noqa: S608 - identifiers of our own models


_SETTLE = f"WITH {settling()} SELECT settled_at FROM settled"  # noqa: S608


def settle(submission_id: UUID, outcome: str, number: int, ending: str) -> bool:
    """Makes the row of a run final and ends its attempt `number`; `False` if its state allows no settlement."""
    params = {"submission": submission_id, "outcome": outcome, "number": number, "ending": ending}
    return timed(_SETTLE, params) is not None


_ADMIT = f"""
    WITH taken AS (
        UPDATE {THREAD} SET next_queue_sequence = next_queue_sequence + 1
         WHERE thread_id = %(thread)s
           AND (SELECT count(*) FROM {SUBMISSION} WHERE thread_id = %(thread)s AND {OPEN}) < %(depth)s
        RETURNING next_queue_sequence - 1 AS place
    )
    INSERT INTO {SUBMISSION} (id, thread_id, queue_sequence, principal, idempotency_key, agent, input, input_digest,
                              state, created_at)
    SELECT %(id)s, %(thread)s, place, %(principal)s, %(key)s, %(agent)s, %(input)s, %(digest)s,
           '{State.READY}', %(now)s
      FROM taken
        ON CONFLICT (thread_id, principal, idempotency_key) DO NOTHING
    RETURNING queue_sequence
"""  # noqa: S608 - identifiers of our own models


def admit(values: dict[str, Any]) -> int | None:
    """Takes the next place of the queue for a submission; `None` if the key is taken, the queue full, or the
    thread unknown: the caller finds out which, and rolls back."""
    row = _one(_ADMIT, values)
    return None if row is None else int(row[0])


def timed(sql: str, params: dict[str, Any]) -> tuple[Any, ...] | None:
    """Runs a statement in which `{clock}` stands for the database's clock."""
    expression, values = clock.expression()
    if values:
        expression, params["now"] = expression.replace("%s", "%(now)s"), values[0]
    return _one(sql.format(clock=expression), params)


def _one(sql: str, params: dict[str, Any] | list[Any]) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found: tuple[Any, ...] | None = cursor.fetchone()
        return found


__all__ = [
    "ABORT",
    "ATTEMPT",
    "BATCH",
    "OPEN",
    "RECORD",
    "SUBMISSION",
    "THREAD",
    "Claimed",
    "admit",
    "append",
    "appending",
    "claim",
    "head",
    "queued",
    "sealed_parameters",
    "serves",
    "settle",
    "settling",
    "timed",
]
