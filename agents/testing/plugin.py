"""For pytest: `pytest_plugins = ["agents.testing.plugin"]` in the root `conftest.py` prepares every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _durable_testing() -> Iterator[None]:
    """Hints go nowhere, time moves only by `travel`, helper threads end with the test."""
    from agents.testing.session import durable_testing  # noqa: PLC0415 - a plugin is imported before Django is set up

    with durable_testing():
        yield
