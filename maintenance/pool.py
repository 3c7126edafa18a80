"""The prefork pool of a worker whose broker has no event loop, as the filesystem's: it outlives the death of a child.

There the children share one queue, and the one that waits for the next task holds the queue's lock while it waits.
Celery's lock is a semaphore: once its holder is killed, nobody can release it, every other child waits for ever, and
the worker looks alive. Here the lock is one that the kernel releases with its holder.

What no lock can mend (a task that its child took along, or left half read in the pipe; a child that is frozen) is
found by the watch, which ends the worker, so that its supervisor starts a new one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from typing import Any

import structlog
from billiard.pool import Pool as BlockingPool
from celery.concurrency import prefork

from maintenance import drain

log = structlog.get_logger("wakeful.maintenance")

LOOK_SECONDS = 1.0
LOOKS = 10
"""So many looks in a row have to find the pool stuck. Looks, not seconds: a machine that was suspended has none."""


# billiard has no types and no public place for what this module has to reach.
Pool: Any = BlockingPool


class LockReleasedByDeath:
    """A lock between processes that were forked from this one; its holder's death releases it.

    Of no use between the threads of one process: there it is always free.
    """

    def __init__(self) -> None:
        # A record lock belongs to the process, not to the descriptor, so a fork passes the file on and not the lock.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the pool is

    def acquire(self) -> bool:
        """Waits for the lock, without a limit."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SharedQueuePool(Pool):  # type: ignore[misc]
    """The blocking pool, with locks that do not die with their holders."""

    def _setup_queues(self) -> None:
        super()._setup_queues()
        self._inqueue._rlock = LockReleasedByDeath()  # noqa: SLF001
        self._outqueue._wlock = LockReleasedByDeath()  # noqa: SLF001


class TaskPool(prefork.TaskPool):
    """Celery's prefork pool. Where it is driven by the event loop, each child has queues of its own: no difference."""

    BlockingPool = SharedQueuePool

    def watch(self, *, patience: float) -> Watch:
        """What looks after the running pool; `patience`: seconds that running passes get before the worker ends."""
        return Watch(vars(self)["_pool"], patience=patience)


class Watch(threading.Thread):
    """Ends the worker if a task has waited through many looks although a child was free.

    Passes that run are asked to stop at their next boundary and are waited for; then the process exits at once,
    because an orderly end would wait for the pool. Its children end with it, and the rows bring their work back.
    """

    def __init__(self, pool: Any, *, patience: float) -> None:
        super().__init__(name="wakeful-pool-watch", daemon=True)
        self._pool, self._patience = pool, patience
        self._stopping = threading.Event()
        self._waiting: set[int] = set()
        self._seen = 0

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            if self._is_stuck():
                self._end_the_worker()

    def _is_stuck(self) -> bool:
        waiting, busy = self._look()
        # The same task each time: one that is new has been taken from a queue that moves.
        self._waiting = self._waiting & waiting if self._seen else waiting
        self._seen = self._seen + 1 if self._waiting and busy < self._pool._processes else 0  # noqa: SLF001
        return self._seen >= LOOKS

    def _look(self) -> tuple[set[int], int]:
        """The tasks that no child has taken, and how many have been taken and run."""
        jobs = [job for job in list(self._pool._cache.values()) if not job.ready()]  # noqa: SLF001
        waiting = {job._job for job in jobs if not job.accepted()}  # noqa: SLF001
        return waiting, len(jobs) - len(waiting)

    def _end_the_worker(self) -> None:
        log.critical("worker.pool_stuck", tasks=len(self._waiting), looks=self._seen)
        drain.request()
        deadline = time.monotonic() + self._patience
        while self._look()[1] and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        os._exit(os.EX_SOFTWARE)
