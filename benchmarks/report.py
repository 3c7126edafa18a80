"""What comes out: one outcome for each benchmark, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a median has to keep."""

    bound: float
    at_least: bool = False

    def is_met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number, measured once in each round."""

    name: str
    values: list[float]
    unit: str
    target: Target | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool:
        return self.target is None or self.target.is_met_by(self.median)


@dataclass(slots=True)
class Outcome:
    """The measures of one benchmark."""

    name: str
    title: str
    measures: list[Measure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, values: Sequence[float], unit: str, target: Target | None = None) -> None:
        """Adds a measure, one value for each round."""
        self.measures.append(Measure(name, list(values), unit, target))

    @property
    def is_met(self) -> bool:
        return all(measure.is_met for measure in self.measures)

    def as_json(self) -> dict[str, object]:
        """The outcome with the machine that it was measured on."""
        measures = [
            {**asdict(m), "median": m.median, "target": str(m.target) if m.target else None, "met": m.is_met}
            for m in self.measures
        ]
        return {
            "name": self.name,
            "title": self.title,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
            "measures": measures,
            "notes": self.notes,
        }


def show(outcome: Outcome, console: Console) -> None:
    """Prints the table of one benchmark."""
    table = Table(title=f"{outcome.name}: {outcome.title}", title_justify="left")
    table.add_column("measure")
    for heading in ("median", "lowest", "highest", "target"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for measure in outcome.measures:
        style = "" if measure.target is None else "green" if measure.is_met else "red"
        numbers = (measure.median, min(measure.values), max(measure.values))
        target = str(measure.target or "")
        table.add_row(measure.name, *map(_readable, numbers), target, measure.unit, style=style)
    console.print(table)
    for note in outcome.notes:
        console.print(f"  {note}", style="dim", highlight=False)


def _readable(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def write(outcome: Outcome, folder: Path) -> Path:
    """Writes `<name>.json` and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.name}.json"
    path.write_text(json.dumps(outcome.as_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
