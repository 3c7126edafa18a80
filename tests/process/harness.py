"""Real processes of a test: workers, beat, actors. Started, waited for by condition, stopped, killed, never leaked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from celery import Celery

from tests.process.board import Board
from tests.process.entry import Entry

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 30.0
"""How long a condition may take on a slow machine; it costs only when the test fails."""
LOOK_SECONDS = 0.02

QUEUES = "maintenance,maintenance.control"
_APP = ["-A", "tests.process.worker_app"]
_WORKER = [*_APP, "worker", "--without-gossip", "--without-mingle"]
_BEAT = [*_APP, "beat", "--pidfile=", "--max-interval", "1"]

Command = dict[str, Any]


def wait_until(holds: Callable[[], object], what: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Returns as soon as the condition holds. Raises `AssertionError` naming what never came."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(LOOK_SECONDS)


def messages_in(app: Celery, queue: str = "maintenance") -> int:
    """How many messages wait in the queue, taken by nobody."""
    with app.connection_for_read() as broker:
        declared: Any = app.amqp.queues[queue](broker.default_channel).queue_declare(passive=True)
        return int(declared.message_count)


class Nursery:
    """The test's end of `tests.process.nursery`: one process from which all others are forked."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.process.nursery"], cwd=ROOT, env=environment, stdin=subprocess.PIPE
        )

    def bear(self, command: Command) -> None:
        """Forks a process for the command."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{json.dumps(command)}\n".encode())
        self._popen.stdin.flush()

    def close(self) -> None:
        """Ends it; what it has born is not touched."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait(PATIENCE_SECONDS)


@dataclass(slots=True)
class Process:
    """One process in a session of its own; its output is kept in a file of the board's folder."""

    name: str
    command: Command
    pid: int = 0

    def wait_born(self) -> None:
        """Waits until it runs, and learns its pid."""
        born = self._reply.with_suffix(".pid")
        wait_until(born.exists, f"{self.name} to start")
        self.pid = int(born.read_text())

    def is_running(self) -> bool:
        return not self._reply.exists()

    def children(self) -> list[int]:
        """The live child processes, whichever thread forked them: of a worker, its pool."""
        listed = Path(f"/proc/{self.pid}/task").glob("*/children")
        with suppress(FileNotFoundError, ProcessLookupError):
            return sorted(int(pid) for each in listed for pid in each.read_text().split())
        return []

    def terminate(self) -> None:
        """Asks the main process to stop, as a deploy does."""
        os.kill(self.pid, signal.SIGTERM)

    def kill_main(self) -> None:
        """SIGKILL for the main process alone."""
        os.kill(self.pid, signal.SIGKILL)
        self.exit_code()

    def kill(self) -> None:
        """SIGKILL for the process and everything it forked; returns when nothing of it is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.exit_code()
        wait_until(lambda: not _living_members(self.pid), f"the end of all processes of {self.name}")

    def exit_code(self, *, within: float = PATIENCE_SECONDS) -> int:
        """Waits for the end: 0, another exit code, or minus the signal that ended it."""
        wait_until(self._reply.exists, f"the end of {self.name}", seconds=within)
        return int(self._reply.read_text())

    def value(self) -> Any:
        """Waits for what an operation returns. Raises `AssertionError` if it did not end well."""
        code = self.exit_code()
        assert code == 0, f"{self.name} ended with {code}\n{self.tail()}"
        return json.loads(self._reply.with_suffix(".value").read_text())

    def tail(self, lines: int = 40) -> str:
        """The end of what it printed."""
        log = Path(self.command["log"])
        printed = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join([f"--- {self.name}", *printed[-lines:]])

    @property
    def _reply(self) -> Path:
        return Path(self.command["reply"])


def _living_members(group: int) -> list[int]:
    """The processes of a group that are not zombies: one that was killed may still be ending."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                state, _, members_of = (each / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(members_of) == group and state not in "ZX":
                    found.append(int(each.name))
    return found


@dataclass
class Processes:
    """Starts the processes of one test, all looking at the same board, database and broker."""

    nursery: Nursery
    board: Board
    maintenance: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    """Django settings in which all processes of the test differ from the environment."""
    started: list[Process] = field(default_factory=list)

    def worker(
        self,
        name: str,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: str = QUEUES,
        wait: bool = True,
        maintenance: dict[str, Any] | None = None,
        **entry: Any,
    ) -> Process:
        """Starts a worker; `entry` is what it differs in from production. Waits until it takes messages."""
        options = ["--pool", pool, "--concurrency", str(concurrency), "--queues", queues]
        arguments = [*_WORKER, *options, "--hostname", f"{name}@process"]
        before = self._times_ready(name)
        process = self._start(name, {"celery": arguments}, maintenance, entry)
        if wait:
            self.wait_ready(process, more_than=before)
        return process

    def wait_ready(self, worker: Process, *, more_than: int = 0) -> None:
        """Waits until the worker has said that it takes messages."""

        def is_ready() -> bool:
            assert worker.is_running(), f"{worker.name} ended at its start\n{worker.tail()}"
            return self._times_ready(worker.name) > more_than

        wait_until(is_ready, f"{worker.name} to be ready")

    def beat(self) -> Process:
        """Starts a beat."""
        return self._start("beat", {"celery": _BEAT}, None, {})

    def act(self, operation: str, *, transport: str = "", breaker_seconds: float = 1.0, **arguments: Any) -> Process:
        """Has an operation carried out by a process of its own, which may be killed."""
        command = {"operation": operation, "arguments": arguments}
        entry = {"transport": transport, "breaker_seconds": breaker_seconds}
        return self._start(operation, command, None, entry)

    @contextmanager
    def supervised(self, workers: list[Process]) -> Iterator[list[Process]]:
        """Starts each of the workers again whenever it ends, as a supervisor does, while the block runs."""
        stop = Event()

        def watch() -> None:
            while not stop.wait(LOOK_SECONDS):
                for position, worker in enumerate(workers):
                    if not worker.is_running():
                        worker.kill()  # what its main process left behind
                        workers[position] = self._bear(worker.name, worker.command)

        guard = Thread(target=watch, name="supervisor")
        guard.start()
        try:
            yield workers
        finally:
            stop.set()
            guard.join()

    def tails(self) -> str:
        """The end of what every process printed, to explain a failure."""
        return "\n".join(process.tail() for process in self.started)

    def stop_all(self) -> None:
        """Kills whatever is left."""
        for process in self.started:
            process.kill()

    def _times_ready(self, name: str) -> int:
        return len(self.board.notes("ready", worker=f"{name}@process"))

    def _start(
        self,
        name: str,
        command: Command,
        maintenance: dict[str, Any] | None,
        entry: dict[str, Any],
    ) -> Process:
        # Celery's command line prefers the environment's broker to the app's.
        broker = {name: url for name, url in self.settings.items() if name == "BROKER_URL"}
        told = {
            "environment": {**Entry(folder=str(self.board.folder), **entry).environment(), **broker},
            "settings": {**self.settings, "MAINTENANCE": {**self.maintenance, **(maintenance or {})}},
        }
        return self._bear(name, {**command, **told})

    def _bear(self, name: str, command: Command) -> Process:
        files = self.board.folder / f"{len(self.started)}-{name}"
        complete = {**command, "reply": f"{files}.ended", "log": f"{files}.log"}
        process = Process(name, complete)
        self.started.append(process)
        self.nursery.bear(complete)
        process.wait_born()
        return process
