"""`tests/scenarios.toml`: which test holds which case of the specification's scenarios, or why none does."""

from __future__ import annotations

import copy
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
SCENARIOS: dict[str, Any] = tomllib.loads((TESTS / "scenarios.toml").read_text())
LISTS = ("LR", "AH", "FR")


@cache
def defined() -> Counter[str]:
    """How often a test of each name is defined."""
    pattern = re.compile(r"^\s*(?:async )?def (test_[a-z0-9_]+)\(", re.MULTILINE)
    return Counter(name for path in TESTS.rglob("test_*.py") for name in pattern.findall(path.read_text()))


def held_by(case: Any) -> tuple[list[str], str | None]:
    """The tests and the reason that the line of a case names."""
    return (case, None) if isinstance(case, list) else (case.get("tests", []), case.get("because", ""))


def problems(scenarios: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the lists, a sentence each."""
    reasons, used = scenarios["reasons"], set()
    for name in LISTS:
        cases, complete = scenarios[name], scenarios["complete"][name].split()
        yield from (f"{name} {case} has no line" for case in complete if case not in cases)
        yield from (f"{name} {case} is no case" for case in cases if case not in complete)
        for case, line in cases.items():
            tests, because = held_by(line)
            used.add(because)
            if not tests and because is None:
                yield f"{name} {case} names neither a test nor a reason"
            if because is not None and not reasons.get(because, "").strip():
                yield f"{name} {case} gives no reason"
            yield from (f"{name} {case} names {test}" for test in tests if defined()[test] != 1)
    yield from (f"no case gives the reason {reason}" for reason in reasons.keys() - used)


def test_every_case_is_held_by_tests_that_exist_or_by_a_reason() -> None:
    assert list(problems(SCENARIOS)) == []


def test_the_lists_are_whole() -> None:
    """A list that lost its end would still agree with itself."""
    assert {name: len(SCENARIOS[name]) for name in LISTS} == {"LR": 242, "AH": 344, "FR": 88}


BREAKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "LR 2 has no line": lambda it: it["LR"].pop("2"),
    "LR 3 is no case": lambda it: it["LR"].update({"3": it["LR"]["2"]}),
    "LR 2 names neither a test nor a reason": lambda it: it["LR"].update({"2": []}),
    "FR O6 gives no reason": lambda it: it["reasons"].update({"no-breaker": " "}),
    "LR 9 gives no reason": lambda it: it["LR"].update({"9": {"because": "children of mine"}}),
    "LR 10 gives no reason": lambda it: it["LR"].update({"10": {}}),
    "AH A-01 names test_gone": lambda it: it["AH"].update({"A-01": ["test_gone"]}),
    "AH A-04 names test_a_declared_function_stays_what_it_was": lambda it: it["AH"].update(
        {"A-04": ["test_a_declared_function_stays_what_it_was"]}
    ),
    "no case gives the reason idle": lambda it: it["reasons"].update({"idle": "Nobody asks."}),
}


@pytest.mark.parametrize("said", BREAKS)
def test_what_is_wrong_with_the_lists_is_said(said: str) -> None:
    broken = copy.deepcopy(SCENARIOS)
    BREAKS[said](broken)
    assert list(problems(broken)) == [said]
