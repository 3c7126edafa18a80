"""The demo's worker processes: started, killed without mercy, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = ("-m", "celery", "-A", "config", "worker", "--concurrency", "1", "--loglevel", "WARNING")
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@dataclass(slots=True)
class Worker:
    """One Celery worker and its pool child, in a process group of their own."""

    name: str
    logs: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        log = (self.logs / f"{self.name}.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [sys.executable, *COMMAND, *QUIET, "--hostname", f"{self.name}@%h"],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """The process group, which is the pid of the worker's main process."""
        return 0 if self.process is None else self.process.pid

    def keep_alive(self) -> None:
        """Starts the worker again if it ended."""
        if self.process is None or self.process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """SIGKILL to the whole group: main process and child at once."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """Asks for a warm shutdown; kills what does not listen."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()
