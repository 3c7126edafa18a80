"""One run after another in one transaction, for PostgreSQL: the outcome of one, the begin of the next.

Two statements, each begun after the thread's row lock, so that what they read of the thread, its queue and its log is
current. Elsewhere, and whenever something is not as usual, `settlement`, `ledger` and `recovery` do the same by rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from agents.hotpath import (
    ABORT,
    ATTEMPT,
    BATCH,
    OPEN,
    RECORD,
    SUBMISSION,
    THREAD,
    appending,
    sealed_parameters,
    settling,
    timed,
)
from agents.states import State
from maintenance.ports import NOTHING_LEFT, Residue

if TYPE_CHECKING:
    from agents.log import Sealed


@dataclass(frozen=True, slots=True)
class Queue:
    """The unsettled submissions of a thread, with what is needed to begin the first of them."""

    waiting: list[UUID] | None
    """All of them, in queue order; `None` if there is none."""
    plain: bool | None
    """Each of them just waits for its turn: recovery could decide nothing."""
    principal: str | None
    """Of the head, as the two that follow."""
    agent: str | None
    input: str | None

    def residue(self) -> Residue | None:
        """What is left, if it is clear from the queue alone; otherwise a scan has to find out."""
        if not self.waiting:
            return NOTHING_LEFT
        return Residue(nonterminal=len(self.waiting), autonomous=True, claimable_head=True) if self.plain else None


def _queue(condition: str = "true") -> tuple[str, str, str]:
    """The queue of a thread in three parts of a statement: a table, columns that read it, and a join for its head."""
    table = f"""waiting AS (
        SELECT s.id, s.queue_sequence,
               s.state = '{State.READY}' AND s.first_sequence IS NULL AND a.submission_id IS NULL AS plain
          FROM {SUBMISSION} AS s LEFT JOIN {ABORT} AS a ON a.submission_id = s.id
         WHERE s.thread_id = %(thread)s AND NOT (s.state = '{State.SETTLED}') AND {condition}
    )"""  # noqa: S608 - identifiers of our own models
    columns = """(SELECT array_agg(id ORDER BY queue_sequence) FROM waiting), (SELECT bool_and(plain) FROM waiting),
           head.principal, head.agent, head.input"""
    head = f"""LEFT JOIN (
           SELECT principal, agent, input FROM {SUBMISSION} AS s
            WHERE thread_id = %(thread)s AND {OPEN} AND {condition} ORDER BY queue_sequence LIMIT 1
           ) AS head ON true"""  # noqa: S608 - identifiers of our own models
    return table, columns, head


_TABLE, _COLUMNS, _HEAD = _queue()
_LOOK = f"""
    WITH {_TABLE}
    SELECT t.tail_sequence, t.tail_digest, {{clock}}, {_COLUMNS}
      FROM {THREAD} AS t {_HEAD} WHERE t.thread_id = %(thread)s
"""  # noqa: S608 - identifiers of our own models


def look(thread_id: str) -> tuple[int, str, datetime, Queue] | None:
    """Where the log ends (sequence and digest), the time, and the queue; `None` if there is no such thread."""
    row = timed(_LOOK, {"thread": thread_id})
    if row is None:
        return None
    sequence, digest, now, *queue = row
    return sequence, digest, now, Queue(*queue)


_TABLE, _COLUMNS, _HEAD = _queue("s.id <> %(submission)s")
_CONCLUDE = f"""
    WITH {appending()}, {settling("batch")}, {_TABLE}
    SELECT (SELECT count(*) FROM written), EXISTS (SELECT FROM settled), {_COLUMNS}
      FROM batch {_HEAD}
"""  # noqa: S608 - identifiers of our own models


@dataclass(frozen=True, slots=True)
class Concluded:
    """A run that was settled."""

    records: int
    """Written to the log: fewer than the batch holds means that a record id is taken."""
    settled: bool
    left: Queue


def conclude(
    thread_id: str, sealed: Sealed, submission_id: UUID, outcome: str, number: int, ending: str
) -> Concluded | None:
    """`append` and `settle` in one statement, with a look at the queue that is left.

    `None`: nothing was written, because the log does not end where the batch presumes or its id is taken.
    """
    params = sealed_parameters(thread_id, sealed)
    params |= {"submission": submission_id, "outcome": outcome, "number": number, "ending": ending}
    row = timed(_CONCLUDE, params)
    if row is None:
        return None
    written, settled, *queue = row
    return Concluded(written, settled, Queue(*queue))


# The conditions stand for constraints that would otherwise fail the statement, and with it the settlement that the
# transaction holds: all of it is written, or nothing.
_BEGIN = f"""
    WITH claimed AS (
        UPDATE {SUBMISSION} AS s
           SET state = '{State.INPUT_APPLIED}', attempts = s.attempts + 1, first_sequence = %(last)s
         WHERE s.id = %(submission)s AND s.state = '{State.READY}' AND s.first_sequence IS NULL
           AND EXISTS (SELECT FROM {THREAD} WHERE thread_id = %(thread)s
                          AND tail_sequence = %(sequence)s AND tail_digest = %(previous)s)
           AND NOT EXISTS (SELECT FROM {BATCH} WHERE thread_id = %(thread)s AND batch_id = %(batch_id)s)
           AND NOT EXISTS (SELECT FROM {RECORD} WHERE thread_id = %(thread)s AND record_id = ANY (%(ids)b::text[]))
           AND NOT EXISTS (SELECT FROM {RECORD} WHERE thread_id = %(thread)s AND sequence = %(last)s)
           AND NOT EXISTS (SELECT FROM {ATTEMPT} WHERE submission_id = s.id AND number = s.attempts + 1)
        RETURNING s.id, s.queue_sequence, s.attempts
    ), begun AS (
        INSERT INTO {ATTEMPT} (submission_id, number, epoch, owner, began_after, started_at)
        SELECT id, attempts, %(epoch)s, %(producer)s, %(last)s, {{clock}} FROM claimed
        RETURNING started_at
    ), {appending("EXISTS (SELECT FROM claimed)")}
    SELECT claimed.queue_sequence, claimed.attempts, begun.started_at FROM claimed, begun
"""  # noqa: S608 - identifiers of our own models


def begin(thread_id: str, submission_id: UUID, sealed: Sealed) -> tuple[int, int, datetime] | None:
    """Claims a submission that was never begun and appends its input, sealed as a batch of one record.

    Its place in the queue, the number of the attempt and the time at which that began. `None`: nothing was written,
    because something is not as the caller saw it.
    """
    return timed(_BEGIN, sealed_parameters(thread_id, sealed) | {"submission": submission_id})
