"""Real worker processes: started idle, opened at a barrier, killed if asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from benchmarks.meters import wait_until
from benchmarks.stand import Stand

READY_SECONDS = 60.0
STOP_SECONDS = 20.0


@dataclass(slots=True)
class Crew:
    """The workers of one measurement. They consume nothing but their idle queue until `open`."""

    app: Celery
    names: list[str]
    processes: list[subprocess.Popen[bytes]]
    log: Path

    def last_words(self) -> str:
        """The end of the common log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2_000:]

    def open(self, queue: str) -> None:
        """Lets every worker consume the queue; returns when all have said so."""
        self.app.control.add_consumer(queue, destination=self.names, reply=True, timeout=10, limit=len(self.names))

    def close(self, queue: str) -> None:
        """Stops consuming; what is running goes on."""
        self.app.control.cancel_consumer(queue, destination=self.names, reply=True, timeout=10, limit=len(self.names))

    def pids(self) -> list[int]:
        """All worker processes and their pool children."""
        return [pid for process in self.processes for pid in [process.pid, *children(process.pid)]]

    def memory(self) -> int:
        """Resident bytes of all of them."""
        return sum(_resident(pid) for pid in self.pids())

    def kill(self) -> None:
        """Ends every process of the crew at once, as a host that goes away."""
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


@contextmanager
def hired(
    stand: Stand,
    application: str,
    app: Celery,
    *,
    idle_queue: str,
    workers: int = 2,
    concurrency: int = 1,
    first: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Crew]:
    """Starts `workers` prefork workers of `concurrency` children each and ends them afterwards.

    Their names count from `first`: two crews at once need different ones.
    """
    names = [f"bench{first + number}@{os.getpid()}" for number in range(workers)]
    processes = [
        _start(stand, [*_command(application, name, concurrency), "-Q", idle_queue], environment) for name in names
    ]
    crew = Crew(app, names, processes, stand.log)
    try:
        wait_until(lambda: _all_answer(crew), seconds=READY_SECONDS, every=0.2, what="the workers to answer")
        yield crew
    finally:
        _end(processes)


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    with suppress(OSError):
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def cpu_seconds(pids: list[int]) -> float:
    """Processor time that these processes have used; a process that is not of this machine counts nothing."""
    return sum(_cpu(pid) for pid in pids)


def _command(application: str, name: str, concurrency: int) -> list[str]:
    options = ["--pool", "prefork", "--concurrency", str(concurrency), "--hostname", name]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return [sys.executable, "-m", "celery", "--app", application, "worker", *options, *quiet]


def _start(stand: Stand, command: list[str], environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    with stand.log.open("ab") as log:
        return subprocess.Popen(
            command, env=stand.environment(environment), stdout=log, stderr=log, start_new_session=True
        )


def _all_answer(crew: Crew) -> bool:
    if any(process.poll() is not None for process in crew.processes):
        message = f"a worker ended before it was ready; the end of the log:\n{crew.last_words()}"
        raise RuntimeError(message)
    replies = crew.app.control.ping(destination=crew.names, timeout=0.5, limit=len(crew.names))
    return len(replies or ()) == len(crew.names)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    until = time.monotonic() + STOP_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, until - time.monotonic()))
        with suppress(ProcessLookupError):
            # The group, because a killed parent leaves its children behind.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _cpu(pid: int) -> float:
    with suppress(OSError, ValueError):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0
