"""`python -m benchmarks [NAME …]`: measures, prints tables, writes JSON. Exit code 1 if a target is missed."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks import report, stand
from benchmarks.options import Options

ALL = {
    "mutations": "benchmarks.mutations",
    "latency": "benchmarks.latency",
    "timers": "benchmarks.timers",
    "sleepers": "benchmarks.sleepers",
    "drain": "benchmarks.drain",
    "kills": "benchmarks.kills",
    "recovery": "benchmarks.recovery",
    "field": "benchmarks.field.job",
}
RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> int:
    """Runs what was asked for; 2 if the environment cannot carry it."""
    chosen = _parse(arguments)
    console = Console()
    options = Options(rounds=chosen.rounds, size=chosen.size)
    try:
        with stand.raised() as place:
            met = [_run(name, place, options, console, chosen.json) for name in chosen.names or ALL]
    except stand.Unfit as unfit:
        console.print(str(unfit), style="red")
        return 2
    return 0 if all(met) else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; all if none is given")
    parser.add_argument("--rounds", type=int, default=3, help="times that each measurement is made (3)")
    parser.add_argument("--size", type=float, default=1.0, help="factor on every amount (1)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="folder of the results (benchmarks/results)")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.names if name not in ALL]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(ALL)}")
    return chosen


def _run(name: str, place: stand.Stand, options: Options, console: Console, folder: Path) -> bool:
    with console.status(f"{name} …"):
        # Imported now: its models need the settings that the stand has made.
        outcome = import_module(ALL[name]).run(place, options)
    report.show(outcome, console)
    report.write(outcome, folder)
    return bool(outcome.is_met)


if __name__ == "__main__":
    sys.exit(main())
