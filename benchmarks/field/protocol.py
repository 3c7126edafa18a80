"""Contestant (b): the protocol of maintenance with a runtime that does each job in one transaction.

A job is a row that a mutation inserts. Each pass takes the oldest waiting job of its thread, appends the row and
marks the job done, in one fenced transaction that also finishes the pass; what is left decides whether another one
is due. Like plain Celery's, the job's own statements are plain SQL: what is compared is what surrounds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection

from benchmarks.models import Job
from maintenance.api import mutation
from maintenance.ports import NOTHING_LEFT, InertLedger, RecoveryReport, Residue, Work

PORTS = {"RUNTIME": "benchmarks.field.protocol.OneTransaction", "LEDGER": "benchmarks.field.protocol.WaitingJobs"}

_ENQUEUE = "INSERT INTO wakeful_benchmarks_job (entity, number, done) VALUES (%s, %s, false)"

# The caller holds the row lock of the entity's thread, so nobody enqueues meanwhile; only its pass takes jobs.
_DO_THE_OLDEST = """
    WITH head AS (
        SELECT id FROM wakeful_benchmarks_job WHERE entity = %(entity)s AND NOT done ORDER BY id LIMIT 1
    ), ended AS (
        UPDATE wakeful_benchmarks_job AS job SET done = true FROM head WHERE job.id = head.id
        RETURNING job.entity, job.number
    )
    INSERT INTO wakeful_benchmarks_record (entity, number) SELECT entity, number FROM ended
    RETURNING (SELECT count(*) FROM wakeful_benchmarks_job WHERE entity = %(entity)s AND NOT done) - 1
"""


def enqueue(entity: str, number: int) -> None:
    """Accepts one job: durable when this returns."""
    with mutation(entity), connection.cursor() as cursor:
        cursor.execute(_ENQUEUE, [entity, number])


class OneTransaction:
    """The job's own commit is the synchronous one, and nothing of it leaves the database."""

    inert = False
    commits_before_user_code = True
    begin_head = None

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        """One transaction closes every window, so nothing is ever left to repair."""
        del work
        return ()

    def process_head(self, work: Work) -> int:
        """Does the oldest waiting job; 0 if there is none."""
        with work.settling() as tally, connection.cursor() as cursor:
            cursor.execute(_DO_THE_OLDEST, {"entity": work.thread_id})
            done = cursor.fetchone()
            tally.settled, tally.residue = (1, _residue(done[0])) if done else (0, NOTHING_LEFT)
        return tally.settled


class WaitingJobs(InertLedger):
    """What an entity still owes: its waiting jobs, each of them claimable at once."""

    inert = False

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        """Counts the waiting jobs, for a pass that did none."""
        del reports
        return _residue(Job.objects.filter(entity=thread_id, done=False).count())


def _residue(waiting: int) -> Residue:
    return Residue(nonterminal=waiting, autonomous=waiting > 0, claimable_head=waiting > 0)
