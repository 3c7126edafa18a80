"""Counting what a piece of code asks of the database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import connection
from django.test.utils import CaptureQueriesContext

_WRITE = re.compile(r"\bINSERT INTO\b|\bDELETE FROM\b|(?<!NO KEY )\bUPDATE\b")
_CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


@dataclass(slots=True)
class Statements:
    """What was sent, without transaction control; complete once the counting block has ended."""

    sql: list[str] = field(default_factory=list)
    transactions: int = 0
    """How many were begun; a statement outside of one is its own."""

    def __len__(self) -> int:
        return len(self.sql)

    def writes(self) -> list[str]:
        """Those that may change a row."""
        return [sql for sql in self.sql if _WRITE.search(sql)]

    def beyond(self, *tables: str) -> list[str]:
        """Those that name none of the tables."""
        return [sql for sql in self.sql if not any(table in sql for table in tables)]


@contextmanager
def counted_statements() -> Iterator[Statements]:
    """Counts the statements of this thread's connection inside the block."""
    counted = Statements()
    connection.ensure_connection()
    with CaptureQueriesContext(connection) as captured:
        yield counted
    for query in captured.captured_queries:
        sql = query["sql"].strip()
        if sql.startswith("BEGIN"):
            counted.transactions += 1
        if not sql.startswith(_CONTROL):
            counted.sql.append(sql)
