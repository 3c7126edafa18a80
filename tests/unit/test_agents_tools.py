"""Declaring tools: names, kinds, duplicates, look-alikes, what a call may look like."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args
from uuid import UUID

import pytest

from agents import canonical, tool, tools
from agents.errors import CallRefused, DuplicateTool, UnknownTool
from agents.models import ToolKind
from agents.records import ToolCallPrepared
from agents.tools import Done, OpenCall, Tool

ONE = UUID(int=1)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = dict(tools._tools)
    yield
    tools._tools.clear()
    tools._tools.update(before)


def charge(amount: int, currency: str = "EUR") -> int:
    return amount


def other(amount: int) -> int:
    return amount


def look_up(call: OpenCall) -> Done:
    return Done()


def test_a_declared_function_stays_what_it_was() -> None:
    assert tool("charge")(charge) is charge
    assert tools.get("charge").function is charge


def test_a_tool_is_ordinary_unless_it_says_otherwise() -> None:
    tool("charge")(charge)
    assert tools.get("charge").kind == "ordinary"


def test_a_tool_with_a_reconciler_is_reconciled() -> None:
    tool("charge", reconcile=look_up)(charge)
    assert tools.get("charge").kind == "reconciled"


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "reconciled"},
        {"kind": "ordinary", "reconcile": look_up},
        {"kind": "idempotent", "reconcile": look_up},
        {"kind": "careful"},
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a reconciled tool needs|a tool is one of"):
        tool("charge", **options)


def test_the_kinds_are_those_that_rows_and_records_hold() -> None:
    """A kind that could be declared and not be stored would fail in the middle of a run."""
    declared = set(get_args(tools.Kind))
    assert declared == set(ToolKind.values)
    assert declared == set(get_args(ToolCallPrepared.model_fields["kind"].annotation))
    assert declared > tools.RERUNNABLE


def test_two_functions_under_one_name_are_refused_by_both_their_places() -> None:
    tool("charge")(charge)
    with pytest.raises(DuplicateTool, match=r"test_agents_tools\.charge and .*test_agents_tools\.other"):
        tool("charge")(other)


def test_the_same_declaration_twice_is_one_and_another_kind_is_another() -> None:
    tool("charge", kind="idempotent")(charge)
    tool("charge", kind="idempotent")(charge)
    with pytest.raises(DuplicateTool):
        tool("charge")(charge)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="printable characters"):
        tool(name)(charge)


def test_an_unknown_name_comes_with_those_that_look_alike() -> None:
    tool("refund")(charge)
    with pytest.raises(UnknownTool) as raised:
        tools.get("refnud")
    assert raised.value.suggestions == ("refund",)


@pytest.mark.parametrize("what", [1, None])
def test_what_is_no_function_is_no_tool(what: Any) -> None:
    with pytest.raises(CallRefused, match="a tool is the name of a declared one, or a function"):
        tools.get(what)


def test_a_key_is_the_same_for_every_try_and_differs_by_submission_turn_and_call() -> None:
    keys = {
        tools.key_of(ONE, 0, "charge"),
        tools.key_of(ONE, 1, "charge"),
        tools.key_of(ONE, 0, "tip"),
        tools.key_of(UUID(int=2), 0, "charge"),
    }
    assert len(keys) == 4
    assert tools.key_of(ONE, 0, "charge") in keys
    assert all(len(key) == 36 and key.isascii() for key in keys)


def test_a_digest_is_over_tool_and_arguments_in_any_order_of_writing() -> None:
    one = canonical.encode({"a": 1, "b": 2})
    other_order = canonical.encode({"b": 2, "a": 1})
    assert tools.digest_of("charge", one) == tools.digest_of("charge", other_order)
    assert tools.digest_of("charge", one) != tools.digest_of("refund", one)


def test_the_key_goes_to_a_tool_that_takes_it_and_does_not_replace_a_given_one() -> None:
    made = Tool(name="put", function=lambda idempotency_key, n: (idempotency_key, n))
    assert made.bound(made.encode({"n": 1}), "key", None)() == ("key", 1)
    assert made.bound(made.encode({"n": 1, "idempotency_key": "own"}), "key", None)() == ("own", 1)


def test_a_stepped_tool_gets_its_ctx_first() -> None:
    made = Tool(name="book", function=lambda ctx, to: (ctx, to), kind="stepped")
    assert made.bound(made.encode({"to": "rome"}), "key", "ctx")() == ("ctx", "rome")
    with pytest.raises(CallRefused, match="multiple values for argument 'ctx'"):
        made.encode({"to": "rome", "ctx": 1})


def test_a_builtin_that_tells_no_signature_can_be_a_tool() -> None:
    made = Tool(name="text", function=dict)
    assert made.bound(made.encode({"a": 1}), "key", None)() == {"a": 1}


def test_tools_can_be_declared_before_the_apps_are_ready() -> None:
    """An app's `durable_agents.py`, and whatever it imports, may be read while no model can be."""
    code = "from agents import agent, tool; tool('a')(len); import sys; sys.exit('agents.models' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
