"""`make crash`: the whole matrix, every failpoint in every life and form, on SQLite and on PostgreSQL.

PostgreSQL is that of `DATABASE_URL` or `CI_POSTGRES_URL`; without one only SQLite is tried, and that is said. Exit
code 1 if anything did not converge.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.process.crash import tally
from tests.process.crash.tally import Tally

ROOT = Path(__file__).resolve().parents[3]
PYTEST = ["-m", "pytest", "-q", "-p", "tests.process.crash.tally", "tests/process/test_crash_matrix.py"]


def main(arguments: list[str]) -> int:
    """Tries both databases and says in the last line what came of it."""
    total, ended_well = Tally(), True
    for name, url in _databases():
        _say(f"--- {name}")
        counted, passed = _try(url, arguments)
        _say(f"{name}: {counted.cells} cells, {counted.line()}")
        total.merge(counted)
        ended_well = ended_well and passed
    _say(total.line())
    return 0 if ended_well and total.is_sound else 1


def _databases() -> list[tuple[str, str | None]]:
    postgres = next(
        (url for url in map(os.environ.get, ("DATABASE_URL", "CI_POSTGRES_URL")) if _is_postgres(url)), None
    )
    if postgres is None:
        _say("PostgreSQL is not tried: DATABASE_URL names none.")
        return [("SQLite", None)]
    return [("SQLite", None), ("PostgreSQL", postgres)]


def _is_postgres(url: str | None) -> bool:
    return url is not None and url.startswith("postgres")


def _try(url: str | None, arguments: list[str]) -> tuple[Tally, bool]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environment |= {"CRASH_MATRIX": "whole"} | ({"DATABASE_URL": url, "SECRET_KEY": "only-for-tests"} if url else {})
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "tally.json"
        environment[tally.VARIABLE] = str(counts)
        ended = subprocess.run([sys.executable, *PYTEST, *arguments], cwd=ROOT, env=environment, check=False)
        return (Tally.load(counts) if counts.exists() else Tally()), ended.returncode == 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
