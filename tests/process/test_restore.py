"""The database is restored to an earlier state under a running worker and messages on their way (scenario M-09).

The rows go back, and with them sequences and epochs, which are then given out a second time. Tokens never are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from maintenance.models import MutationLease, PassRun, ThreadMaintenance
from maintenance.testing import recorded_hints
from tests.process import evidence
from tests.process.board import PAUSE
from tests.process.harness import wait_until
from tests.process.jobs import Job, Outcome, submit

if TYPE_CHECKING:
    from tests.process.board import Board
    from tests.process.harness import Processes

pytestmark = [pytest.mark.process, pytest.mark.postgres]

RUNNING, SETTLED, OLD = "running", "settled", "old"
TABLES = [model._meta.db_table for model in (ThreadMaintenance, MutationLease, PassRun, Job, Outcome)]


def copies() -> list[tuple[str, str]]:
    return [(connection.ops.quote_name(table), connection.ops.quote_name(f"kept_{table}")) for table in TABLES]


class Snapshot:
    """Copies of all tables, as a backup that was taken at one moment."""

    def take(self) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            for table, copy in copies():
                cursor.execute(f"CREATE TABLE {copy} AS TABLE {table}")

    def restore(self) -> None:
        """Puts all tables back in one commit. Sequences of keys stay: a key given out twice is another's trouble."""
        with transaction.atomic(), connection.cursor() as cursor:
            for table, copy in copies():
                cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
                cursor.execute(f"DELETE FROM {table}")
                cursor.execute(f"INSERT INTO {table} SELECT * FROM {copy}")

    def drop(self) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            for _, copy in copies():
                cursor.execute(f"DROP TABLE IF EXISTS {copy}")


@pytest.fixture
def snapshot(processes: Processes) -> Iterator[Snapshot]:
    made = Snapshot()
    made.drop()
    yield made
    made.drop()


def accepted_unheard(*threads: str) -> None:
    """Accepts a job in each thread; their hints are lost."""
    with recorded_hints():
        for thread_id in threads:
            submit(thread_id)


@pytest.mark.parametrize("after_failover", [True, False], ids=["ensured", "swept"])
def test_m09_a_restore_under_a_running_pass_and_old_messages_ends_with_each_job_done_once(
    processes: Processes, board: Board, snapshot: Snapshot, *, after_failover: bool
) -> None:
    accepted_unheard(OLD)
    one = processes.worker("one")
    evidence.wait_for_rest()
    one.terminate()
    one.exit_code()
    accepted_unheard(RUNNING, SETTLED)
    snapshot.take()

    board.order("body", PAUSE, RUNNING)
    processes.worker("two")
    wait_until(lambda: board.hits("body", thread=RUNNING), "the body")
    wait_until(lambda: board.notes("done", thread=SETTLED) and not evidence.row_of(SETTLED).lease_token, "the other")
    accepted_unheard("too-late")
    seqs = {row.thread_id: row.alarm_seq for row in ThreadMaintenance.objects.all()}
    snapshot.restore()

    answers = {
        thread_id: processes.act("deliver", thread_id=thread_id, seq=seq + 100).value()
        for thread_id, seq in seqs.items()
    }
    assert answers["too-late"] == "unknown_thread", "it was accepted after the backup"
    assert set(answers.values()) <= {"superseded", "cleared", "busy", "unknown_thread"}
    evidence.assert_invariants()
    if after_failover:
        call_command("maintenance", "ensure", "--after-failover", "--reason", "restored from a backup")
        evidence.assert_invariants()
    board.open("body", RUNNING)
    wait_until(lambda: board.notes("answer", outcome="lease_lost"), "the pass from before the restore to give up")

    evidence.wait_for_rest()
    assert Job.objects.filter(done=True).count() == 3
    epochs = [note["epoch"] for note in board.notes("body", thread=RUNNING)]
    assert epochs == [1, 1], "the epoch was given out again: the token alone told the two apart"
    assert len(board.notes("done", thread=RUNNING)) == 1
