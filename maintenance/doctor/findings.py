"""What the doctor says: one finding for each fact it looked at, good ones too."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    """Looked at, and as it should be."""
    INFO = "info"
    """A fact that someone may have to know; nothing to do."""
    WARNING = "warning"
    """No promise is broken, but work may be late, or a promise rests on less than it could."""
    ERROR = "error"
    """A promise is broken, or work stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding."""

    id: str
    """Stable: `area.subject`, or the id of a system check."""
    level: Level
    text: str
    hint: str = ""
    """What to do; never empty for a warning or an error."""


def ok(subject: str, text: str) -> Finding:
    return Finding(id=subject, level=Level.OK, text=text)


def info(subject: str, text: str, hint: str = "") -> Finding:
    return Finding(id=subject, level=Level.INFO, text=text, hint=hint)


def warning(subject: str, text: str, hint: str) -> Finding:
    return Finding(id=subject, level=Level.WARNING, text=text, hint=hint)


def error(subject: str, text: str, hint: str) -> Finding:
    return Finding(id=subject, level=Level.ERROR, text=text, hint=hint)
