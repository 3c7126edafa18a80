"""The tables of known flaws and of closed windows name tests that exist, and leave no flaw out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAWS = ROOT / "docs" / "known-flaws.md"
WINDOWS = ROOT / "docs" / "adr" / "0009-windows-that-one-transaction-closes.md"
NAMED = re.compile(r"`(test_[a-z0-9_]+)`")


def existing() -> set[str]:
    """The names of all tests of the project."""
    defined = re.compile(r"^\s*(?:async )?def (test_[a-z0-9_]+)\(", re.MULTILINE)
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in defined.findall(path.read_text())}


@pytest.mark.parametrize("table", [FLAWS, WINDOWS], ids=lambda path: path.stem)
def test_every_test_that_a_table_names_exists(table: Path) -> None:
    named = set(NAMED.findall(table.read_text()))
    assert named
    assert named - existing() == set()


def test_no_flaw_is_left_out() -> None:
    text = FLAWS.read_text()
    listed = {int(number) for number in re.findall(r"^\| F(\d+) ", text, re.MULTILINE)}
    for first, last in re.findall(r"^\| F(\d+) to F(\d+) ", text, re.MULTILINE):
        listed |= set(range(int(first), int(last) + 1))
    assert listed == set(range(1, 47))
