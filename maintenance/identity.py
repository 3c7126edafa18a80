"""What can be the id of a thread."""

from __future__ import annotations

MAX_THREAD_ID = 255
"""Characters."""


def is_thread_id(value: object) -> bool:
    """Whether a thread may bear this id: a text that every database can store."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_THREAD_ID or "\x00" in value:
        return False
    # JSON and command lines can carry half a character, which no database takes.
    return not any("\ud800" <= character <= "\udfff" for character in value)
