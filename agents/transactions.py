"""Whether the caller holds a transaction open."""

from __future__ import annotations

from django.db import connection


def is_open() -> bool:
    """Whether this thread's connection is inside `transaction.atomic`, leaving out what a Django TestCase holds."""
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
