"""Contestant (b): the protocol of maintenance with a runtime that does each job in one transaction.

A job is a row that a mutation inserts. Each pass takes the oldest waiting job of its thread, appends the row and
marks the job done, in one fenced transaction; what is left decides whether another pass is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.models import Job, Record
from maintenance.api import mutation
from maintenance.ports import InertLedger, RecoveryReport, Residue, Work

PORTS = {"RUNTIME": "benchmarks.field.protocol.OneTransaction", "LEDGER": "benchmarks.field.protocol.WaitingJobs"}


def enqueue(entity: str, number: int) -> None:
    """Accepts one job: durable when this returns."""
    with mutation(entity):
        Job.objects.create(entity=entity, number=number)


class OneTransaction:
    """The job's own commit is the synchronous one, and nothing of it leaves the database."""

    inert = False
    commits_before_user_code = True

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        """One transaction closes every window, so nothing is ever left to repair."""
        del work
        return ()

    def process_head(self, work: Work) -> int:
        """Does the oldest waiting job; 0 if there is none."""
        with work.fenced(progress=True):
            job = Job.objects.filter(entity=work.thread_id, done=False).order_by("id").first()
            if job is None:
                return 0
            Record.objects.create(entity=job.entity, number=job.number)
            Job.objects.filter(pk=job.pk).update(done=True)
        return 1


class WaitingJobs(InertLedger):
    """What an entity still owes: its waiting jobs, each of them claimable at once."""

    inert = False

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        """Counts the waiting jobs, after the row lock of finish."""
        del reports
        waiting = Job.objects.filter(entity=thread_id, done=False).count()
        return Residue(nonterminal=waiting, autonomous=waiting > 0, claimable_head=waiting > 0)
