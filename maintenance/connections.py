"""The kept connection of this thread: looked at before it is used again, left alone inside a transaction."""

from __future__ import annotations

from django.db import connection

from maintenance.errors import RuntimeFailed


def freshen() -> None:
    """Replaces a connection that the server closed meanwhile.

    Not inside a transaction: Django would take it for one left open and close it under its owner, a `TestCase` that
    runs passes, for example.
    """
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()


def refuse_what_cannot_commit() -> None:
    """Raises `RuntimeFailed` if code of the host has turned autocommit off on this connection and left it so.

    `atomic` then commits nothing at its end: a settlement would seem to be durable, the worker would go on with the
    next head, and all of it would be rolled back with the connection.
    """
    if connection.connection is not None and not connection.in_atomic_block and not connection.get_autocommit():
        raise RuntimeFailed("autocommit was left off on the connection of this pass; nothing could be committed")
