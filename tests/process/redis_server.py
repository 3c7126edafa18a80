"""A Redis of one test's own, which it may flush, stop, restart, fill and pause. Fails if Redis is not installed."""

from __future__ import annotations

import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.process.harness import wait_until

HOST = "127.0.0.1"


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
    return port


@dataclass
class RedisServer:
    """One server process on a port that nobody else uses."""

    folder: Path
    options: tuple[str, ...] = ("--save", "", "--appendonly", "no")
    port: int = field(default_factory=_free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        place = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder)]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(["redis-server", *place, *self.options], stdout=log, stderr=log)
        wait_until(self._answers, "Redis to answer")

    def stop(self) -> None:
        """Kills it: what it had not written to disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis(HOST, self.port, socket_timeout=10)

    def command(self, *words: str) -> object:
        """Sends one command."""
        with self.client() as client:
            return client.execute_command(*words)

    def length(self, queue: str) -> int:
        """How many messages wait in a queue."""
        with self.client() as client:
            return int(client.llen(queue))

    def forget_who_took_what(self) -> int:
        """Makes every message that a dead worker took look as old as time; how many there are."""
        with self.client() as client:
            taken = client.zrange("unacked_index", 0, -1)
            for tag in taken:
                client.zadd("unacked_index", {tag: 0})
            return len(taken)

    def _answers(self) -> bool:
        with suppress(redis.ConnectionError, redis.BusyLoadingError), self.client() as client:
            return bool(client.ping())
        return False
