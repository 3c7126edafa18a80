"""The examples' own tests pass: each is a project of its own, with its own run of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("example", ["support_desk"])
def test_the_tests_of_an_example_pass(example: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DATABASE_"))}
    environment |= {"WAKEFUL_APPS": f"examples.{example}", "WAKEFUL_VAR": str(tmp_path), "BROKER_URL": "memory://"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"examples/{example}/tests"]

    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_examples_can_be_collected_beside_other_tests() -> None:
    """Whoever says `pytest .` gets all of them."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "examples", __file__]

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
