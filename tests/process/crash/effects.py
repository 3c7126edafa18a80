"""What happened outside the database: one line for each effect, by one write, so that no crash can hide one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

HIT = "hit"
"""The line of a failpoint at which a process died."""


def note(path: str, what: str, key: str = "") -> None:
    """Appends one effect."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{what} {key}\n".encode())
    finally:
        os.close(descriptor)


def lines(path: str) -> list[tuple[str, str]]:
    """Every effect with its key, in order."""
    noted = Path(path)
    if not noted.exists():
        return []
    found = (line.partition(" ") for line in noted.read_text().splitlines())
    return [(what, key) for what, _, key in found]


def counts(path: str) -> Counter[str]:
    """How often each effect happened."""
    return Counter(what for what, _ in lines(path) if what != HIT)


def keys(path: str, effect: str) -> set[str]:
    """The keys under which an effect happened."""
    return {key for what, key in lines(path) if what == effect}


def hits(path: str) -> list[str]:
    """The failpoints at which processes died, in order."""
    return [key for what, key in lines(path) if what == HIT]
