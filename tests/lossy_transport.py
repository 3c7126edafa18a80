"""A broker that loses, doubles, delays and so reorders messages, by a seed: a kombu transport for tests.

It lives in this process, as kombu's memory transport does. `broken_network` says how bad it is; outside of it the
transport refuses to connect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from queue import Empty
from random import Random
from threading import Lock
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual

URL = "lossy://"
TRANSPORT_ALIASES["lossy"] = "tests.lossy_transport:Transport"


@dataclass
class Network:
    """What happens to messages on their way; counts what it did to them."""

    seed: int
    now: Callable[[], datetime]
    loses: float = 0.2
    """Share of messages that never arrive."""
    doubles: float = 0.2
    """Share of the others that arrive twice."""
    delays: timedelta = timedelta(seconds=3)
    """The longest way; each copy takes one of its own."""
    sent: int = 0
    lost: int = 0
    doubled: int = 0
    _on_their_way: list[tuple[datetime, int, str, str]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)

    def carry(self, queue: str, message: dict[str, Any]) -> None:
        """Takes a message from a publisher, who always believes that it arrived."""
        with self._lock:
            self.sent += 1
            if self._chance.random() < self.loses:
                self.lost += 1
                return
            twice = self._chance.random() < self.doubles
            self.doubled += twice
            for copy in range(1 + twice):
                at = self.now() + self.delays * self._chance.random()
                heappush(self._on_their_way, (at, 2 * self.sent + copy, queue, json.dumps(message)))

    def arrived(self, queue: str) -> dict[str, Any] | None:
        """Hands out the next message that has arrived in the queue."""
        with self._lock:
            if not self._on_their_way or self._on_their_way[0][0] > self.now():
                return None
            if self._on_their_way[0][2] != queue:
                return None
            message: dict[str, Any] = json.loads(heappop(self._on_their_way)[3])
            return message

    def __len__(self) -> int:
        return len(self._on_their_way)

    def flush(self) -> None:
        """Forgets everything, as FLUSHALL does."""
        with self._lock:
            self._on_their_way.clear()


_network: Network | None = None


@contextmanager
def broken_network(network: Network) -> Iterator[Network]:
    """Lets the transport of this process carry messages over that network."""
    global _network  # noqa: PLW0603 - one per process, as kombu's memory transport has one
    before, _network = _network, network
    try:
        yield network
    finally:
        _network = before


def current() -> Network:
    if _network is None:
        message = "no network; the test has to make one"
        raise ConnectionRefusedError(message)
    return _network


class Channel(virtual.Channel):
    """One connection's end of the network."""

    do_restore = False
    supports_fanout = False

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        current().carry(queue, message)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        found = current().arrived(queue)
        if found is None:
            raise Empty
        return found

    def _size(self, queue: str) -> int:
        return len(current())

    def _purge(self, queue: str) -> int:
        count = len(current())
        current().flush()
        return count


class Transport(virtual.Transport):
    """Named by the URL `lossy://`."""

    Channel = Channel
    global_state = virtual.BrokerState()
    driver_type = "lossy"
    driver_name = "lossy"

    def driver_version(self) -> str:
        return "N/A"
