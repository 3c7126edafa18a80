"""Logs as long as a run can make them, without making the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from agents import canonical, log, records
from agents.conf import get_settings
from agents.log import Batch
from agents.records import NewRecord, StepSettled
from maintenance import clock

TABLE = "wakeful_agents_logrecord"


def record_steps(submission_id: UUID, names: list[str], thread_id: str = "t") -> None:
    """Appends the steps to the run as its lost attempt might have, in batches as large as they may be."""
    run, tail, size = records.run_id(submission_id), log.tail_of(thread_id), get_settings().max_batch_records
    with transaction.atomic():
        for first in range(0, len(names), size):
            page = [_step(run, name) for name in names[first : first + size]]
            batch = Batch(page[0].record_id, page)
            producer = log.this_process(1)
            tail = log.append(thread_id, batch, tail=tail, producer=producer, at=clock.now()).tail


def _step(run: str, name: str) -> NewRecord:
    payload = StepSettled(run=run, name=name, attempt=1, output=canonical.encode(name))
    return NewRecord(records.step_id(run, name), payload)


@dataclass(slots=True)
class Reading:
    """What was read of logs, one entry for each statement: how many records it gave."""

    pages: list[int] = field(default_factory=list)

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("SELECT") and TABLE in sql:
            # Sent twice: whoever asked needs the rows for themselves.
            execute(sql, params, many, context)
            self.pages.append(len(context["cursor"].fetchall()))
        return execute(sql, params, many, context)


@contextmanager
def watched_reading() -> Iterator[Reading]:
    """Counts the records that this thread's connection reads inside the block."""
    reading = Reading()
    with connection.execute_wrapper(reading):
        yield reading
