"""Tools for tests: their effects are counted outside the database, as the world does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from agents import api, tools
from agents.models import ToolCall
from maintenance.testing import Crash, Failpoints, deliver
from tests.agents_kit import run, settled, sound

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare


class World:
    """What tools did, in order, and the ways to declare them for one test."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.keys: list[str] = []

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.did)

    def tool(self, name: str, does: Callable[[], Any] | None = None, **options: Any) -> None:
        """Declares a tool that takes an amount and returns `<name> <amount>`, or what `does` gives or raises."""

        def body(amount: int, idempotency_key: str) -> Any:
            self.did.append(name)
            self.keys.append(idempotency_key)
            return f"{name} {amount}" if does is None else does()

        api.tool(name, **options)(body)


@pytest.fixture
def world() -> Iterator[World]:
    """Return the world of one test; its tools are forgotten afterwards."""
    before = dict(tools._tools)
    yield World()
    tools._tools.clear()
    tools._tools.update(before)


def crash(points: Failpoints, name: str, thread_id: str = "t") -> None:
    """The pass of the thread dies at that failpoint."""
    points.crash_at(name)
    with pytest.raises(Crash):
        deliver(thread_id)
    assert points.pending == [], f"{name} was not hit"


def call_rows() -> list[tuple[str, str, int]]:
    """Each call with its status and tries, in the order in which they were first prepared."""
    return list(ToolCall.objects.order_by("pk").values_list("call", "status", "tries"))


def submit(declare: Declare, handler: Callable[[api.Context, Any], Any]) -> api.Receipt:
    """Accept one submission to this handler."""
    declare("buyer", handler)
    return api.submit("t", "buyer", None)


def outcome_of(declare: Declare, handler: Callable[[api.Context, Any], Any]) -> api.Settlement:
    """What one submission to this handler comes to."""
    receipt = submit(declare, handler)
    run()
    sound()
    return settled(receipt)
