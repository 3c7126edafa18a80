"""What is too deep, too large or cannot be stored is refused where it comes in (ledger-recovery, o; scenario E 59)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from agents import api
from agents.canonical import MAX_DEPTH
from agents.errors import AdmissionLimitExceeded, AgentInputError
from tests.agents_kit import agents_database, families, run, settled, sound
from tests.tools_kit import World, world

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

MEBIBYTE = 1_048_576
Write = Callable[[api.Context, Any], Any]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


WRITES: dict[str, Write] = {
    "a step": lambda ctx, value: ctx.step("one", lambda: value),
    "an argument": lambda ctx, value: ctx.call_tool("keep", amount=value),
    "a question": lambda ctx, value: ctx.approval("may I?", "keep", value),
    "an output": lambda _ctx, value: value,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    ("value", "said"),
    [(nested(MAX_DEPTH + 1), "nested deeper than 64"), ("x" * 200, "bytes; at most 190 are allowed")],
    ids=["too deep", "too large"],
)
def test_59_what_a_run_writes_is_bounded_in_depth_and_bytes(
    declare: Declare, world: World, settings: Settings, write: Write, value: Any, said: str
) -> None:
    settings.AGENTS = {"MAX_INPUT_BYTES": 190, "MAX_STEP_RESULT_BYTES": 190}
    world.tool("keep")
    declare("writer", lambda ctx, _: write(ctx, value))
    receipt = api.submit("t", "writer", None)
    run()

    failure = settled(receipt).failure
    assert failure is not None
    assert said in failure.message
    assert families() == ["thread-created", "user-input", "submission-settled"]
    assert world.did == []


@pytest.mark.parametrize("value", [nested(MAX_DEPTH), nested(MAX_DEPTH - 1)])
def test_59_a_value_at_the_limit_of_depth_is_kept_as_it_is(declare: Declare, value: Any) -> None:
    declare("writer", lambda ctx, given: ctx.step("one", lambda: given))
    receipt = api.submit("t", "writer", value)
    run()
    assert settled(receipt).result == value
    sound()


def test_59_an_input_of_a_mebibyte_is_accepted_and_one_byte_more_is_not(echo: str) -> None:
    receipt = api.submit("t", echo, "x" * (MEBIBYTE - 2))
    with pytest.raises(AdmissionLimitExceeded) as refused:
        api.submit("t", echo, "x" * (MEBIBYTE - 1))
    assert (refused.value.actual, refused.value.maximum) == (MEBIBYTE + 1, MEBIBYTE)
    run()
    assert settled(receipt).outcome == "completed"


def test_59_many_small_values_are_bounded_by_their_bytes_alone(echo: str) -> None:
    """The reference also counts: 4,096 entries, 65,536 nodes. What those may cost, the bytes bound as well."""
    many = list(range(65_537))
    receipt = api.submit("t", echo, many)
    run()
    assert settled(receipt).result == many


@pytest.mark.parametrize(("payload", "error"), [(nested(65), AgentInputError), ("x" * 200, AdmissionLimitExceeded)])
def test_59_an_event_is_bounded_before_anything_is_written(
    echo: str, settings: Settings, payload: Any, error: type[Exception]
) -> None:
    settings.AGENTS = {"MAX_INPUT_BYTES": 190}
    api.submit("t", echo, 1)
    with pytest.raises(error):
        api.send_event("t", "paid", payload)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b"])
@pytest.mark.parametrize(
    "wait", [lambda ctx, name: ctx.wait_event(name), lambda ctx, name: ctx.approval("ask", name)], ids=["event", "tool"]
)
def test_a_name_that_cannot_be_stored_fails_the_run_and_not_the_store(declare: Declare, wait: Write, name: str) -> None:
    """A refusal of the database would look like a fault of the machinery, and be tried again and again."""
    declare("asker", lambda ctx, _: wait(ctx, name))
    receipt = api.submit("t", "asker", None)
    run()
    found = settled(receipt)
    assert found.failure is not None
    assert (found.failure.error_tag, found.attempts) == ("StepError", 1)
    assert "1 to 200 printable characters" in found.failure.message
