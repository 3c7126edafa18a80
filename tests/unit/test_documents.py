"""The Python of README and docs is Python, formatted as ours is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{document.name}-{number}")
    for document in DOCUMENTS
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("code", BLOCKS)
def test_an_example_compiles_and_is_formatted(code: str) -> None:
    compile(code, "example", "exec")
    command = [sys.executable, "-m", "ruff", "format", "--diff", "--stdin-filename", str(ROOT / "example.py"), "-"]

    ended = subprocess.run(command, input=code, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_there_are_examples_to_look_at() -> None:
    assert len(BLOCKS) > 5
