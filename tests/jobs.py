"""The smallest runtime that is real: jobs of a thread in a table, each to be settled once and in order.

Its body commits and rolls back with maintenance's own transactions, so a test sees what a crash leaves. A job that
was settled twice shows it: the table counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection

from maintenance import hooks
from maintenance.gate import mutation
from maintenance.hooks import Hooks
from maintenance.ports import NOTHING_LEFT, BeginHead, RecoveryReport, Residue, Work

Settling = Callable[[Work, int], None]
"""Called with the number of the job, inside the transaction that settles it."""


def execute(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """Runs one statement; the rows it returned, if any."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall()) if cursor.description else []


@dataclass
class Jobs:
    """Both ports over the table, and what a test asks of it."""

    on_settle: Settling | None = None
    after_settling: Callable[[Work], None] | None = None
    """Called when the settlement is committed and the pass is not finished."""
    inert: bool = False
    commits_before_user_code: bool = False
    begin_head: BeginHead | None = None

    def submit(self, number: int, thread_id: str = "t", *, wake: bool = True) -> None:
        """Accepts one job; again with the same number changes nothing but the generation."""
        with mutation(thread_id, wake=wake):
            self.insert(number, thread_id)

    def insert(self, number: int, thread_id: str = "t") -> None:
        """Writes the job, in the caller's transaction."""
        execute("INSERT INTO tests_job VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", thread_id, number)

    def settled(self, thread_id: str = "t") -> dict[int, int]:
        """How often each accepted job was settled, by its number."""
        return dict(execute("SELECT number, settled FROM tests_job WHERE thread_id = %s ORDER BY number", thread_id))

    def unsettled(self, thread_id: str = "t") -> int:
        """How many accepted jobs wait."""
        return sum(times == 0 for times in self.settled(thread_id).values())

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        return ()

    def process_head(self, work: Work) -> int:
        with work.fenced(progress=True):
            found = execute(
                "SELECT number FROM tests_job WHERE thread_id = %s AND settled = 0 ORDER BY number LIMIT 1",
                work.thread_id,
            )
            for (number,) in found:
                if self.on_settle:
                    self.on_settle(work, number)
                execute(
                    "UPDATE tests_job SET settled = settled + 1 WHERE thread_id = %s AND number = %s",
                    work.thread_id,
                    number,
                )
        if self.after_settling:
            self.after_settling(work)
        return len(found)

    def thread_exists(self, thread_id: str) -> bool:
        return bool(self.settled(thread_id))

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        left = self.unsettled(thread_id)
        return Residue(nonterminal=left, autonomous=True, claimable_head=True) if left else NOTHING_LEFT


@contextmanager
def table_of_jobs(*, after_settling: Callable[[Work], None] | None = None, **ports: Any) -> Iterator[Jobs]:
    """Makes the table and installs the runtime over it as this process's hooks; `ports` are the others."""
    execute("DROP TABLE IF EXISTS tests_job")
    execute(
        "CREATE TABLE tests_job (thread_id varchar(255), number integer, settled integer, "
        "PRIMARY KEY (thread_id, number))"
    )
    jobs = Jobs(after_settling=after_settling)
    try:
        with hooks.installed(Hooks(runtime=jobs, ledger=jobs, **ports)):
            yield jobs
    finally:
        execute("DROP TABLE tests_job")
