"""Agents that exist for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agents import registry
from agents.errors import UnknownAgent


@contextmanager
def agent_for_test(handler: Callable[..., Any], *, name: str | None = None, **types: Any) -> Iterator[str]:
    """Declares the handler as an agent for the time of the block; gives its name (by default the function's).

    An agent that is declared under the name already is back afterwards. `types` are those of `@agent`.
    """
    known_as = name or handler.__name__
    before = _known(known_as)
    registry.unregister(known_as)
    registry.agent(known_as, **types)(handler)
    try:
        yield known_as
    finally:
        registry.unregister(known_as)
        if before is not None:
            registry.register(known_as, before)


def _known(name: str) -> registry.Driver | None:
    try:
        return registry.get(name)
    except UnknownAgent:
        return None
