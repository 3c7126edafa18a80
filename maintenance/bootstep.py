"""Gives every worker its own sweep timer, so that no single process is needed, and its drain flag.

Imported while the Celery app is made, before Django's models are loaded: what needs them is imported at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps
from celery.signals import worker_shutting_down

from maintenance import drain

if TYPE_CHECKING:
    from maintenance.sweeper import Sweeper


class SweepStep(bootsteps.StartStopStep):
    """Starts and stops the timer with the worker."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **_: Any) -> None:
        self._sweeper: Sweeper | None = None
        super().__init__(parent)

    def start(self, parent: Any) -> None:
        del parent
        from maintenance.sweeper import Sweeper

        drain.reset()
        self._sweeper = Sweeper()
        self._sweeper.start()

    def stop(self, parent: Any) -> None:
        del parent
        if self._sweeper is not None:
            self._sweeper.stop()
            self._sweeper = None


def install(app: Celery) -> None:
    """Adds the timer to the app's workers and lets a warm shutdown reach the passes that run."""
    app.steps["worker"].add(SweepStep)
    worker_shutting_down.connect(_drain_on_shutdown, dispatch_uid="wakeful-drain")


def _drain_on_shutdown(**_: Any) -> None:
    drain.request()
