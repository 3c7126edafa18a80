"""The test's end of the cradle: orders deaths and lives, and waits for each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.process.crash.lives import LIVES, Cell, Life

ROOT = Path(__file__).resolve().parents[3]

THREAD = "t"
APART = 7_200
"""Seconds of the moved clock between two processes: leases, retries and timers of the dead have passed."""

KILLED = -9


class Cradle:
    """One process from which all those of the matrix are forked."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.process.crash.cradle"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def bear(self, order: dict[str, Any]) -> int:
        """Has one process live; how it ended: 0, another exit code, or minus the signal."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(f"{json.dumps(order)}\n".encode())
        self._popen.stdin.flush()
        return int(self._popen.stdout.readline())

    def close(self) -> None:
        """Ends it."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.wait(30)
        self._popen.stdout.close()


class Story:
    """The processes of one cell, one after the other."""

    def __init__(self, cradle: Cradle, cell: Cell, folder: Path, *, fused: bool, variant: str = "") -> None:
        self.cell, self._cradle, self._fused, self._variant = cell, cradle, fused, variant
        self.path, self._log = str(folder / "effects"), folder / "log"
        self._lived = 0

    @property
    def life(self) -> Life:
        return LIVES[self.cell.life]

    def play(self) -> None:
        """Lets the processes before it die, then the one of the cell, then another one go on to the end.

        Raises `AssertionError` if one of them did not die where it should, or the last one did not reach the end.
        """
        for point in self.life.preludes:
            self._one(dies_at=point)
        self._one(dies_at=self.cell.point, nth=self.cell.nth)
        self._one()

    def _one(self, *, dies_at: str = "", nth: int = 1) -> None:
        order = {
            "life": self.cell.life,
            "thread": THREAD,
            "path": self.path,
            "log": str(self._log),
            "dies_at": dies_at,
            "nth": nth,
            "ahead": self._lived * APART,
            "variant": self._variant,
            "settings": {"MAINTENANCE": {"FUSED": self._fused}, "AGENTS": self.life.agents},
        }
        self._lived += 1
        code = self._cradle.bear(order)
        if dies_at:
            assert code != 0, f"{dies_at} is not passed by the life {self.cell.life!r}"
        assert code == (KILLED if dies_at else 0), f"the process ended with {code}\n{self._printed()}"

    def _printed(self) -> str:
        return self._log.read_text() if self._log.exists() else ""
