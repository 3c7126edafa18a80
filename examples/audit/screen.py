"""What the demo shows: progress while it runs, then the findings and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.audit.durable_agents import Finding
from examples.audit.verdict import Verdict

console = Console()

SHOWN = 12
"""How many findings the table lists."""


def progress() -> Progress:
    """A bar with the settled submissions and the kills so far."""
    return Progress(
        TextColumn("[bold]auditing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("settled · {task.fields[kills]} workers killed"),
        TimeElapsedColumn(),
        console=console,
    )


def findings(found: list[Finding]) -> Table:
    """Distributions with a difference first, then the largest."""
    table = Table(title=f"{len(found)} distributions audited", caption=f"the first {SHOWN}: differences, then by size")
    for name in ("distribution", "version", "licence"):
        table.add_column(name, no_wrap=True, max_width=18)
    for name in ("files", "MiB", "modified", "missing"):
        table.add_column(name, justify="right")
    for each in sorted(found, key=lambda f: (-len(f.modified) - len(f.missing), -f.bytes))[:SHOWN]:
        table.add_row(
            each.distribution,
            each.version,
            each.licence,
            str(each.files),
            f"{each.bytes / 2**20:.1f}",
            _count(each.modified),
            _count(each.missing),
        )
    return table


def verdict(reached: Verdict) -> Table:
    """The promises and what became of them."""
    table = Table(title="Verdict", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for label, value in (
        ("accepted", reached.accepted),
        ("settled", reached.settled),
        ("lost", reached.lost),
        ("settled twice", reached.settled_twice),
        ("workers killed while they held a lease", reached.workers_killed),
        ("passes interrupted", reached.passes_interrupted),
        ("steps run twice (cut off before they were recorded)", reached.steps_run_twice),
        ("recorded steps run again", reached.recorded_steps_run_again),
        ("alarm lateness p50 / p99, ms", f"{reached.alarm_lateness_p50} / {reached.alarm_lateness_p99}"),
        ("logs verified", "yes" if reached.logs_verified else "NO"),
    ):
        table.add_row(label, str(value))
    return table


def _count(paths: list[str]) -> str:
    return "" if not paths else f"[yellow]{len(paths)}[/yellow]"
