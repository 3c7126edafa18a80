"""Searches that an index answers: an id or its beginning, a thread, a key within a thread."""

from __future__ import annotations

import re
from uuid import UUID

from django.db.models import Q

ENOUGH = 8
"""Hexadecimal digits with which an id's beginning narrows a table: ids begin with their time."""

_HEX = re.compile(r"[0-9a-f]+")


def by_id(term: str, field: str = "pk") -> Q | None:
    """The rows whose UUID begins like the term; `None` if it cannot be the beginning of one."""
    digits = term.strip().lower().replace("-", "")
    if not ENOUGH <= len(digits) <= 32 or not _HEX.fullmatch(digits):
        return None
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    return Q((f"{field}__gte", first), (f"{field}__lte", last))


def either(*conditions: Q | None) -> Q:
    """Any of those that make sense."""
    found = Q(pk__in=[])
    for condition in conditions:
        if condition is not None:
            found |= condition
    return found
