"""A host project that is asked about tools and approvals, for tests: a setting needs a path that leads to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from agents import api

if TYPE_CHECKING:
    from pytest_django import Settings

PATH = "tests.hosting.ask"


class Host:
    """What it says, and what it was asked, in order."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.asked: list[api.Intended] = []
        self.says: Callable[[api.Intended], Any] = lambda _: None

    def authorizes(self, says: Callable[[api.Intended], Any]) -> None:
        """From here on it is asked before a tool runs."""
        self._decides("TOOL_AUTHORIZER", says)

    def approves(self, says: Callable[[api.Intended], Any]) -> None:
        """From here on it is asked before a person is."""
        self._decides("APPROVAL_POLICY", says)

    def _decides(self, setting: str, says: Callable[[api.Intended], Any]) -> None:
        self.says = says
        self._settings.AGENTS = {**self._settings.AGENTS, setting: PATH}


_host: Host


@pytest.fixture
def host(settings: Settings) -> Iterator[Host]:
    """Return the host project of one test, which has no say before it is told what to say."""
    global _host  # noqa: PLW0603 - a dotted path leads to something global
    _host = Host(settings)
    yield _host
    del _host


def ask(what: api.Intended) -> Any:
    """What the settings name."""
    _host.asked.append(what)
    return _host.says(what)


async def coroutine(what: api.Intended) -> Any:
    """No plain function, so it cannot be named."""
