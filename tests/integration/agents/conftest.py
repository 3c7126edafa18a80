"""Agents for one test, and both forms of the statements: fused where the database has them, plain everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from agents import registry
from agents.drivers import asynchronous

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.dispatch import Hint

Declare = Callable[..., None]

FORMS = ["fused", "plain"] if connections["default"].vendor == "postgresql" else ["plain"]


@pytest.fixture(autouse=True)
def _no_broker(sent: list[Hint]) -> None:
    """Hints are recorded, not sent."""


@pytest.fixture(autouse=True)
def _no_async_thread_left() -> Iterator[None]:
    """The helper thread of coroutine handlers keeps a connection, which would outlive the test's database."""
    yield
    asynchronous.stop()


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, settings: Settings) -> str:
    """Run the test with the fused statements of PostgreSQL and with the plain ones."""
    settings.MAINTENANCE = {**settings.MAINTENANCE, "FUSED": request.param == "fused"}
    return str(request.param)


@pytest.fixture
def declare() -> Iterator[Declare]:
    """Return a function that declares an agent for this test: `declare("name", handler, input=..., output=...)`."""
    made: list[str] = []

    def declared(name: str, handler: Callable[..., Any], **types: Any) -> None:
        made.append(name)
        registry.agent(name, **types)(handler)

    yield declared
    for name in made:
        registry.unregister(name)


@pytest.fixture
def echo(declare: Declare) -> str:
    """Return the name of an agent that returns its input."""
    declare("echo", lambda _ctx, given: given)
    return "echo"
