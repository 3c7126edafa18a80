"""A folder on which a test and its child processes leave orders and notes for each other.

An *order* says what the first process that reaches a point (a failpoint, or a port of the test's own runtime) has to
do there. It is taken by a rename, so exactly one process carries it out. A *note* is one line appended by one write,
so that work can be counted from outside, also the work of a process that died right after it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

Note = dict[str, Any]

ANY = "*"
"""Any thread."""

KILL = "kill"
"""SIGKILL for the process that reaches the point."""
PAUSE = "pause"
"""Wait there until the test opens the point."""
STUCK = "stuck"
"""Stay there for ever, deaf to Celery's soft limit, as a body in foreign code does."""
FAIL = "fail"
"""Raise an ordinary error of the host's code."""
SPIN = "spin"
"""Keep the interpreter busy for `SPIN_SECONDS`."""

SPIN_SECONDS = 1.5
_LOOK_SECONDS = 0.005
_MEET_SECONDS = 20.0


class Board:
    """Both sides of the folder; see the module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._orders, self._standing, self._taken, self._gates = (
            folder / name for name in ("orders", "standing", "taken", "gates")
        )
        self._notes = folder / "notes.jsonl"

    def prepare(self) -> Board:
        """Makes the folders; done once, by the test."""
        for each in (self._orders, self._standing, self._taken, self._gates):
            each.mkdir(parents=True)
        self._notes.touch()
        return self

    def order(self, point: str, action: str, thread_id: str = ANY, *, always: bool = False) -> None:
        """Has the next process that reaches `point` do `action`; with `always`, every one."""
        draft = self.folder / f"{point}.draft"
        draft.write_text(action)
        draft.rename((self._standing if always else self._orders) / _name(point, thread_id))

    def withdraw(self, point: str, thread_id: str = ANY) -> None:
        """Takes an order back that nobody has carried out, or a standing one."""
        for each in (self._orders, self._standing):
            (each / _name(point, thread_id)).unlink(missing_ok=True)

    def open(self, point: str, thread_id: str = ANY) -> None:
        """Lets the process go on that pauses at `point`."""
        (self._gates / _name(point, thread_id)).touch()

    def notes(self, kind: str, **having: object) -> list[Note]:
        """The notes of a kind whose fields have these values, in the order in which they were written."""
        lines = self._notes.read_text().splitlines()
        found = (json.loads(line) for line in lines)
        return [note for note in found if note["kind"] == kind and having.items() <= note.items()]

    def hits(self, point: str, **having: object) -> list[Note]:
        """Where an order for `point` was carried out."""
        return self.notes("hit", point=point, **having)

    def note(self, kind: str, **fields: object) -> None:
        """Appends one line, by one write."""
        line = json.dumps({"kind": kind, "pid": os.getpid(), "at": time.time(), **fields}) + "\n"
        descriptor = os.open(self._notes, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def reach(self, point: str, thread_id: str = "") -> str:
        """Carries out what is ordered at `point`, if anything; returns the action for the caller to add to."""
        order = self._take(point, thread_id)
        if order is None:
            return ""
        name, action = order
        self.note("hit", point=point, thread=thread_id, action=action)
        self._carry_out(action, name)
        return action

    def meet(self, gate: str, *, parties: int) -> None:
        """Waits, without sleeping, until so many processes have come here: they leave at the same instant."""
        arrived = self._gates / f"meet-{gate}"
        arrived.mkdir(exist_ok=True)
        (arrived / str(os.getpid())).touch()
        deadline = time.monotonic() + _MEET_SECONDS
        while len(os.listdir(arrived)) < parties:  # noqa: PTH208 - the count is all that is needed
            if time.monotonic() > deadline:
                message = f"fewer than {parties} processes came to {gate}"
                raise AssertionError(message)
            os.sched_yield()

    def _take(self, point: str, thread_id: str) -> tuple[str, str] | None:
        for name in (_name(point, thread_id), _name(point, ANY)):
            with suppress(FileNotFoundError):
                return name, (self._standing / name).read_text()
            taken = self._taken / f"{name}.{os.getpid()}.{time.monotonic_ns()}"
            with suppress(FileNotFoundError):
                (self._orders / name).rename(taken)
                return name, taken.read_text()
        return None

    def _carry_out(self, action: str, name: str) -> None:
        match action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # the signal is under way
            case "pause":
                while not (self._gates / name).exists():
                    time.sleep(_LOOK_SECONDS)
            case "stuck":
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
                time.sleep(600)
            case "fail":
                raise ValueError("ordered to fail")
            case "spin":
                until = time.monotonic() + SPIN_SECONDS
                while time.monotonic() < until:
                    pass


def _name(point: str, thread_id: str) -> str:
    return f"{point}@{thread_id}"
