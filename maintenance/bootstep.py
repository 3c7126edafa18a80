"""What every worker gets: its own sweep timer, so that no single process is needed, a drain flag, a look at its pool.

Imported while the Celery app is made, before Django's models are loaded: what needs them is imported at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps
from celery.signals import worker_shutting_down

from maintenance import drain

if TYPE_CHECKING:
    from maintenance.pool import Watch
    from maintenance.sweeper import Sweeper

POOL_LOOK_SECONDS = 1.0


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


class PoolStep(bootsteps.StartStopStep):
    """Keeps the prefork pool at work although its children may be killed at any time.

    Where the event loop drives the pool, it looks for dead children every second. Celery looks once, when the pipe of
    a child closes, which is a moment before the child can be waited for; if it was too early, only after five
    seconds. Until then the dead child keeps its place, and its message the prefetch.

    Where there is no event loop, the pool is one that outlives its children, and is watched: see `maintenance.pool`.
    """

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **_: Any) -> None:
        self._look: Any = None
        self._watch: Watch | None = None
        self._shares_a_queue = _is_prefork(parent) and not parent.use_eventloop
        if self._shares_a_queue:
            from maintenance import pool

            # All steps are made before the first of them makes something: the pool is not there yet.
            parent.pool_cls = pool.TaskPool
        super().__init__(parent)

    def start(self, parent: Any) -> None:
        if self._shares_a_queue:
            self._watch = parent.pool.watch(patience=parent.app.conf.worker_soft_shutdown_timeout)
            self._watch.start()

    def stop(self, parent: Any) -> None:
        del parent
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Called whenever the event loop starts, so also after each lost connection to the broker."""
        if self._look is not None:
            self._look.cancel()
        self._look = hub.call_repeatedly(POOL_LOOK_SECONDS, parent.pool.maintain_pool)


def _is_prefork(worker: Any) -> bool:
    """By name: other pools, and those that patch the standard library, have no use for its modules."""
    module: str = worker.pool_cls.__module__
    return module == "celery.concurrency.prefork" and worker.pool_start_method == "fork"


def install(app: Celery) -> None:
    """Adds the steps to the app's workers and lets a warm shutdown reach the passes that run."""
    app.steps["worker"].update({SweepStep, PoolStep})
    worker_shutting_down.connect(_drain_on_shutdown, dispatch_uid="wakeful-drain")


def _drain_on_shutdown(**_: Any) -> None:
    drain.request()
