"""Every command of `docs/operating.md` is one that the commands understand, and its tables name what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class

from agents.operations.authorize import PERMISSIONS

GUIDE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ manage\.py (.+)$", GUIDE, flags=re.MULTILINE)
PARSERS: dict[str, Any] = {
    name: load_command_class(name, name).create_parser("manage.py", name) for name in ("agents", "maintenance")
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_is_understood(command: str) -> None:
    name, *words = shlex.split(command)
    parsed = PARSERS[name].parse_args(words)
    assert parsed.verb == words[0]


def test_the_guide_shows_every_verb_of_both_commands() -> None:
    for name, parser in PARSERS.items():
        (verbs,) = [action for action in parser._actions if action.dest == "verb"]
        shown = {shlex.split(command)[1] for command in COMMANDS if command.startswith(name)}
        assert set(verbs.choices) - shown <= {"submit", "wake"}


def test_the_guide_names_every_permission_by_which_operations_are_allowed() -> None:
    for permission in PERMISSIONS.values():
        assert permission in GUIDE or f"….{permission.partition('.')[2]}" in GUIDE


def test_the_guide_links_only_to_its_own_headings() -> None:
    headings = {line[3:].lower().replace(" ", "-") for line in GUIDE.splitlines() if line.startswith("## ")}
    assert set(re.findall(r"\(#([a-z-]+)\)", GUIDE)) <= headings
