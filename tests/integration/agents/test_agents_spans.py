"""Spans of runs and tool calls: their outcome in a word, none of what went in or came out (alarm-host, 18.7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from agents import api, records
from agents.errors import OutcomeUnknown, RetryLater, ToolFailure
from agents.models import Submission
from tests.agents_kit import agents_database, run
from tests.tracing import Collected, collected_spans, context_of, told

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database

SECRET = "4242 4242"


@pytest.fixture
def collected() -> Iterator[Collected]:
    with collected_spans() as made:
        yield made


def call(declare: Declare, tool: Any) -> None:
    """Runs a handler that calls the tool once."""

    def handler(ctx: api.Context, given: Any) -> Any:
        return ctx.call_tool(tool, card=given)

    declare("caller", handler)
    api.submit("t", "caller", SECRET)
    run()


def charge(card: str) -> str:
    assert trace.get_current_span().is_recording(), "what the tool opens is inside its span"
    return card


def refuse(card: str) -> str:
    raise ToolFailure(f"no {card}")


def busy(card: str) -> str:
    raise RetryLater(f"busy {card}", after=60)


def lost(card: str) -> str:
    raise OutcomeUnknown(f"no reply about {card}")


@pytest.mark.parametrize(
    ("tool", "outcome"),
    [(charge, "completed"), (refuse, "failed"), (busy, "retry-later"), (lost, "unknown")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_s03_the_span_of_a_tool_tells_its_outcome_and_no_payload(
    declare: Declare, collected: Collected, tool: Any, outcome: str
) -> None:
    call(declare, tool)

    span = collected.one(f"execute_tool {tool.__name__}")
    assert told(span) == {"thread": "t", "kind": "ordinary", "tries": 1, "outcome": outcome}
    assert not any(SECRET in each.to_json() for each in collected.all())


def test_s03_the_span_of_a_run_tells_its_outcome_and_holds_those_of_its_tools(
    declare: Declare, collected: Collected
) -> None:
    call(declare, charge)

    ran, tool = collected.one("agents.run"), collected.one("execute_tool charge")
    run_id = Submission.objects.values_list("pk", flat=True).get()
    assert told(ran) == {
        "thread": "t",
        "agent": "caller",
        "run": records.run_id(run_id),
        "attempt": 1,
        "outcome": "completed",
    }
    assert tool.parent is not None
    assert tool.parent.span_id == context_of(ran).span_id


def test_s03_a_run_that_waits_is_no_error_and_has_no_outcome(declare: Declare, collected: Collected) -> None:
    declare("sleeper", lambda ctx, _given: ctx.sleep(60))
    api.submit("t", "sleeper", None)
    run()

    ran = collected.one("agents.run")
    assert ran.status.status_code is StatusCode.UNSET
    assert "outcome" not in told(ran)


def test_s03_a_tool_of_a_coroutine_has_its_span_too(declare: Declare, collected: Collected) -> None:
    async def fetch(page: int) -> int:
        return page

    async def handler(ctx: api.AsyncContext, given: Any) -> Any:
        return await ctx.call_tool(fetch, page=1)

    declare("caller", handler)
    api.submit("t", "caller", None)
    run()

    assert told(collected.one("execute_tool fetch"))["outcome"] == "completed"
