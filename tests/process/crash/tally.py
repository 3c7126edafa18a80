"""A pytest plugin that counts, by failpoint, what became of the cells of the matrix."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "CRASH_TALLY"
"""Names the file to which the counts go."""


@dataclass
class Tally:
    """Counts of one run of the matrix, or of several."""

    cells: int = 0
    broken: set[str] = field(default_factory=set)
    """Failpoints of which a cell did not converge."""
    points: set[str] = field(default_factory=set)
    lost: int = 0
    settled_twice: int = 0

    def add(self, point: str, *, passed: bool, lost: int, settled_twice: int) -> None:
        """Counts one cell."""
        self.cells += 1
        self.points.add(point)
        if not passed:
            self.broken.add(point)
        self.lost += lost
        self.settled_twice += settled_twice

    def merge(self, other: Tally) -> None:
        """Adds the counts of another run."""
        self.cells += other.cells
        self.points |= other.points
        self.broken |= other.broken
        self.lost += other.lost
        self.settled_twice += other.settled_twice

    def line(self) -> str:
        """The last line of `make crash`."""
        converged = len(self.points - self.broken)
        return f"{len(self.points)} points, {converged} converged, {self.lost} lost, {self.settled_twice} settled twice"

    @property
    def is_sound(self) -> bool:
        return bool(self.points) and not (self.broken or self.lost or self.settled_twice)

    def save(self, path: Path) -> None:
        counts = {**vars(self), "points": sorted(self.points), "broken": sorted(self.broken)}
        path.write_text(json.dumps(counts))

    @classmethod
    def load(cls, path: Path) -> Tally:
        counts = json.loads(path.read_text())
        return cls(**{**counts, "points": set(counts["points"]), "broken": set(counts["broken"])})


_tally = Tally()
_told: dict[str, dict[str, Any]] = defaultdict(dict)


def pytest_runtest_logreport(report: Any) -> None:
    """Counts a cell when its last phase has ended; every phase must have passed."""
    properties = _told[report.nodeid]
    properties.update(report.user_properties)
    properties["passed"] = properties.get("passed", True) and report.passed
    if report.when == "teardown" and "point" in properties:
        _tally.add(
            properties["point"],
            passed=properties["passed"],
            lost=properties.get("lost", 0),
            settled_twice=properties.get("settled_twice", 0),
        )


def pytest_sessionfinish() -> None:
    _tally.save(Path(os.environ[VARIABLE]))
