"""The kept connection of this thread: looked at before it is used again, left alone inside a transaction."""

from __future__ import annotations

from django.db import connection


def freshen() -> None:
    """Replaces a connection that the server closed meanwhile.

    Not inside a transaction: Django would take it for one left open and close it under its owner, a `TestCase` that
    runs passes, for example.
    """
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
