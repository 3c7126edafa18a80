"""Declaring agents: names, duplicates, look-alikes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents import agent, registry
from agents.errors import DuplicateAgent, UnknownAgent


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = dict(registry._drivers)
    yield
    registry._drivers.clear()
    registry._drivers.update(before)


def handler(ctx: Any, given: Any) -> Any:
    return given


def other(ctx: Any, given: Any) -> Any:
    return given


def test_a_declared_function_stays_what_it_was() -> None:
    assert agent("one")(handler) is handler
    assert registry.names() == sorted({*registry.names(), "one"})


def test_two_functions_under_one_name_are_refused_by_both_their_places() -> None:
    agent("one")(handler)
    with pytest.raises(DuplicateAgent, match=r"test_agents_registry\.handler and .*test_agents_registry\.other"):
        agent("one")(other)


def test_the_same_declaration_twice_is_one() -> None:
    agent("one", input=int)(handler)
    agent("one", input=int)(handler)
    with pytest.raises(DuplicateAgent):
        agent("one", input=str)(handler)


def test_an_unknown_name_comes_with_those_that_look_alike() -> None:
    agent("refund")(handler)
    with pytest.raises(UnknownAgent) as raised:
        registry.get("refnud")
    assert raised.value.suggestions == ("refund",)
    assert "did you mean 'refund'?" in raised.value.message


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="printable characters"):
        agent(name)(handler)
