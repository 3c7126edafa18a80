"""The filesystem transport of kombu, with whole messages.

kombu writes a message into the folder that readers list, so that a reader may take one that is
half written and stop its worker over it; and it rewrites the table of bindings in place. Here a
message appears by a rename, is taken by a rename on the same filesystem, and the tables have a lock
of their own. A worker that dies with a message in hand still loses it: the sweep brings it back.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from time import time_ns
from typing import TYPE_CHECKING, Any

from kombu.transport import filesystem
from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterator


class Channel(filesystem.Channel):
    """Puts and takes each message by one rename."""

    # kombu's two base classes name the second argument differently.
    def _put(self, queue: str, payload: dict[str, Any], **_kwargs: object) -> None:  # type: ignore[override]
        folder = Path(self.data_folder_out)
        name = f"{time_ns()}_{uuid.uuid4()}.{queue}"
        draft = folder / f"{name}.part"
        draft.write_text(dumps(payload))
        draft.rename(folder / f"{name}.msg")

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002 - polled
        taken = Path(self.processed_folder)
        for name in self._messages(queue):
            mine = taken / name
            try:
                (Path(self.data_folder_in) / name).rename(mine)
            except FileNotFoundError:
                continue  # another worker was faster
            content = mine.read_text()
            mine.unlink()
            return loads(content)
        raise Empty

    def _size(self, queue: str) -> int:
        return len(self._messages(queue))

    def _purge(self, queue: str) -> int:
        names = self._messages(queue)
        for name in names:
            (Path(self.data_folder_in) / name).unlink(missing_ok=True)
        return len(names)

    def _messages(self, queue: str) -> list[str]:
        """Name the messages of `queue`, oldest first."""
        ending = f"{queue}.msg"
        names = os.listdir(self.data_folder_in)  # noqa: PTH208 - names are all that is needed
        return sorted(name for name in names if name.partition(".")[2] == ending)

    def get_table(self, exchange: str) -> Any:
        with self._tables_locked():
            return super().get_table(exchange)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        with self._tables_locked():
            super()._queue_bind(exchange, routing_key, pattern, queue)

    @contextmanager
    def _tables_locked(self) -> Iterator[None]:
        with (Path(self.control_folder) / "tables.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class Transport(filesystem.Transport):
    """Named by `BROKER_URL=filesystem://` in this project; see `config/celery_settings.py`."""

    Channel = Channel
