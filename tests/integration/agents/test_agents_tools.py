"""Tool calls of handlers (ledger-recovery, g; scenarios L; field reports M): prepared before, settled after, run once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from agents import api, failpoints, tools
from agents.errors import DuplicateTool, RetryLater
from agents.models import Submission, ToolCall
from maintenance import drain
from maintenance.delivery import Outcome
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, families, log, run, run_after_a_death, settled, sound

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.usefixtures("form")]


class Shop:
    """Tools whose effects are counted outside the database, as the world does it."""

    def __init__(self) -> None:
        self.did: Counter[str] = Counter()
        self.keys: list[str] = []

    def charge(self, amount: int) -> dict[str, int]:
        self.did["charge"] += 1
        return {"charged": amount}

    def put(self, amount: int, idempotency_key: str) -> str:
        self.did["put"] += 1
        self.keys.append(idempotency_key)
        return f"put {amount}"

    def decline(self, amount: int) -> None:
        self.did["decline"] += 1
        raise api.ToolFailure("the card was declined", tag="CardDeclined")


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    api.tool("charge")(made.charge)
    api.tool("put", kind="idempotent")(made.put)
    api.tool("decline")(made.decline)
    yield made
    for name in list(tools._tools):
        tools.unregister(name)


def calling(declare: Declare, *names: str) -> api.Receipt:
    """Submit to an agent that calls these tools one after another, each with the amount 5."""
    declare("buyer", lambda ctx, _: [ctx.call_tool(name, amount=5) for name in names])
    return api.submit("t", "buyer", None)


def crash(points: Failpoints, name: str) -> None:
    points.crash_at(name)
    with pytest.raises(Crash):
        deliver("t")
    assert points.pending == [], f"{name} was not hit"


def test_146_a_call_is_recorded_before_and_after_it_runs(declare: Declare, shop: Shop) -> None:
    receipt = calling(declare, "charge")
    run()

    assert settled(receipt).result == [{"charged": 5}]
    assert families() == ["thread-created", "user-input", "tool-prepared", "tool-settled", "submission-settled"]
    prepared, ended = log()[2:4]
    assert prepared.record_id == f"tool-prepared:run:{receipt.submission_id}:0:1:charge"
    assert prepared.payload["arguments"] == {"amount": 5}
    assert (prepared.payload["tool"], prepared.payload["kind"]) == ("charge", "ordinary")
    assert (ended.payload["result"], ended.payload["is_failure"], ended.payload["by"]) == (
        {"charged": 5},
        False,
        "handler",
    )
    row = ToolCall.objects.get()
    assert (row.status, row.tries, row.kind) == ("settled", 1, "ordinary")
    sound()
