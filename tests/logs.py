"""What was logged, by event."""

from __future__ import annotations

import logging
from typing import Any

import pytest


def events(caplog: pytest.LogCaptureFixture, name: str, *, level: int | None = None) -> list[dict[str, Any]]:
    """The events of that name, as dictionaries, in order; of one level if asked."""
    found: list[tuple[int, object]] = [(record.levelno, record.msg) for record in caplog.records]
    return [
        event for at, event in found if isinstance(event, dict) and event.get("event") == name and level in {None, at}
    ]


def errors(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The events of that name that were logged as errors."""
    return events(caplog, name, level=logging.ERROR)
