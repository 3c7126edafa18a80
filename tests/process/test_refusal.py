"""Workers and beat refuse to start on an unsound configuration, and say which."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

UNSOUND = '{"LEASE_RENEWAL_MS": 20000}'


@pytest.mark.parametrize("program", [["worker", "--pool", "solo", "--without-mingle"], ["beat", "--pidfile="]])
def test_an_error_of_the_system_checks_ends_the_process(program: list[str], worker_environment: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "config", *program],
        env={**worker_environment, "MAINTENANCE": UNSOUND},
        timeout=30,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode != 0
    assert "wakeful_maintenance.E003" in ended.stderr
