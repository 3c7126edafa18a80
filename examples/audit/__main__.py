"""`python -m examples.audit`: accept one audit per distribution, kill workers meanwhile, show what was kept.

Real worker processes on the embedded default (SQLite, filesystem broker), in a fresh folder under `var/`. Set
`DATABASE_URL` and `BROKER_URL` to run it elsewhere, `DEMO_JSON=path` to keep the verdict. Exit code 1 if a promise
was broken or too few passes were interrupted to show anything.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

KILLS = 4
LEAST_INTERRUPTED = 3
PATIENCE_SECONDS = 300
FOLDER = Path("var/demo").resolve()


def main() -> int:
    """Runs the demo and returns its exit code."""
    _prepare()
    # Django reads its settings from the environment prepared above.
    import django

    django.setup()
    from django.core.management import call_command

    from examples.audit import screen
    from examples.audit.run import Run

    call_command("migrate", verbosity=0)
    run = Run(folder=FOLDER, kills=KILLS, patience=PATIENCE_SECONDS)
    screen.console.print(
        "Each installed distribution becomes one durable thread. Two workers audit them; one is killed now and then."
    )
    began = time.monotonic()
    verdict = run.play()
    screen.console.print(screen.findings(run.findings()))
    screen.console.print(screen.verdict(verdict))
    if path := os.environ.get("DEMO_JSON"):
        verdict.save(Path(path))
    shown = verdict.passes_interrupted >= LEAST_INTERRUPTED
    screen.console.print(_sentence(kept=verdict.kept, shown=shown, seconds=time.monotonic() - began))
    return 0 if verdict.kept and shown else 1


def _prepare() -> None:
    """A folder of its own, emptied; the settings of every process of the demo."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.environ["WAKEFUL_VAR"] = str(FOLDER)
    os.environ["WAKEFUL_APPS"] = "examples.audit"
    os.environ["AUDIT_JOURNAL"] = str(FOLDER / "steps.log")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


def _sentence(*, kept: bool, shown: bool, seconds: float) -> str:
    if not kept:
        return f"[red]A promise was broken.[/red] Logs of the workers: {FOLDER / 'logs'}"
    if not shown:
        return "[yellow]Every promise was kept, but too few passes were interrupted to show it. Run it again.[/yellow]"
    return f"[green]Every promise was kept[/green], in {seconds:.0f} s."


if __name__ == "__main__":
    sys.exit(main())
