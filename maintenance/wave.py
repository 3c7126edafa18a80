"""The message wave: delivery to other threads beside the pass, on one helper thread and connection per process.

On SQLite, where a second writer would only wait for the first, it runs inline after the head attempt.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

from django.db import close_old_connections, connection, connections

from maintenance import clock
from maintenance.errors import INTERRUPTIONS, MessagesFailed, PassInterrupted, WakefulError, described
from maintenance.hooks import Hooks
from maintenance.work import PassWork

POLL_SECONDS = 0.1
INLINE_SECONDS = 1.0
"""How long an inline wave may keep a pass."""
STOP_SECONDS = 5.0
"""How long a failing pass waits for its wave to stop."""

_executor: tuple[int, ThreadPoolExecutor] | None = None


class Wave:
    """One wave, from its start to its join or cancellation."""

    def __init__(self, work: PassWork, hooks: Hooks) -> None:
        self._work, self._hooks = work, hooks
        # A handle of its own: cancelling the wave must not cancel the pass.
        self._own = PassWork(work.lease, work.generation)
        self._future: Future[None] | None = None
        self._inline = False
        self._failure: MessagesFailed | None = None
        if self._is_due():
            self._start()

    def run_inline(self) -> None:
        """The wave of a database with a single writer; does nothing elsewhere."""
        if self._inline:
            self._inline = False
            self._own.deadline = min(self._own.deadline, time.monotonic() + INLINE_SECONDS)
            try:
                _drain(self._hooks, self._own)
            except PassInterrupted:
                # The limit of a bounded wave is its end, not a failure; the limits of the pass are raised again here.
                self._work.checkpoint()

    def join(self) -> None:
        """Waits for the wave within the limits of the pass. Raises `MessagesFailed` if it failed."""
        self.run_inline()
        if self._failure is not None:
            raise self._failure
        while self._future is not None:
            self._work.checkpoint()
            try:
                self._future.result(timeout=POLL_SECONDS)
            except NotYet:
                continue
            except MessagesFailed:
                # A wave that met a limit of the pass a moment before the pass did: the pass is interrupted, not failed.
                self._work.checkpoint()
                raise
            self._future = None

    def cancel(self) -> bool:
        """Asks the wave to stop; whether it really has."""
        self._own.cancelled, self._inline = True, False
        if self._future is None or self._future.cancel():
            return True
        try:
            self._future.exception(timeout=STOP_SECONDS)
        except NotYet:
            return False
        return True

    def _is_due(self) -> bool:
        if self._hooks.messages.inert:
            return False
        try:
            deadline = self._hooks.messages.pending_deadline(self._work.thread_id)
        except INTERRUPTIONS:
            raise
        except Exception as error:  # noqa: BLE001 - messages never hold canonical work back: raised at the join
            self._failure = MessagesFailed(f"the message deadline failed: {described(error)}")
            self._failure.__cause__ = error
            return False
        return deadline is not None and deadline <= clock.now()

    def _start(self) -> None:
        if connection.vendor == "sqlite":
            self._inline = True
        else:
            self._future = _pool().submit(_drain_on_own_connection, self._hooks, self._own)


def _drain_on_own_connection(hooks: Hooks, work: PassWork) -> None:
    close_old_connections()
    try:
        _drain(hooks, work)
    except INTERRUPTIONS as stopped:
        # Inside a future a BaseException would be taken for a broken worker; the pass re-raises its own limits.
        raise MessagesFailed(f"the message wave was stopped: {described(stopped)}") from stopped


def _drain(hooks: Hooks, work: PassWork) -> None:
    try:
        work.checkpoint()
        hooks.messages.drain(work)
    except (*INTERRUPTIONS, WakefulError):
        raise
    except Exception as error:
        raise MessagesFailed(f"the message wave failed: {described(error)}") from error


def _pool() -> ThreadPoolExecutor:
    global _executor  # noqa: PLW0603 - one per process; a forked child makes its own
    if _executor is None or _executor[0] != os.getpid():
        _executor = (os.getpid(), ThreadPoolExecutor(max_workers=1, thread_name_prefix="wakeful-wave"))
    return _executor[1]


def stop() -> None:
    """Ends this process's wave thread and its connection (for tests and orderly exits)."""
    global _executor  # noqa: PLW0603
    if _executor is not None and _executor[0] == os.getpid():
        # `connection.close` would be looked up here and close the connection of this thread.
        _executor[1].submit(connections.close_all)
        _executor[1].shutdown(wait=True)
    _executor = None
