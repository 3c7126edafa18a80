"""The embedded broker: messages arrive whole, once and in order, whoever reads and writes."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Exchange, Queue

from config import embedded

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = 200


class Mailbox:
    """A queue of a broker in its own folder, addressed as Celery does: by the default exchange."""

    def __init__(self, folder: Path) -> None:
        self.name = uuid.uuid4().hex
        self._options = embedded.broker_folders(folder)

    @property
    def queue(self) -> Queue:
        return Queue(self.name, Exchange(""), routing_key=self.name)

    def connect(self) -> Connection:
        transport = "config.filesystem_broker:Transport"
        return Connection("localhost", transport=transport, transport_options=self._options)

    def send(self, numbers: range) -> None:
        with self.connect() as connection:
            producer = connection.Producer()
            for number in numbers:
                body = {"number": number, "weight": "x" * 2_000}
                producer.publish(body, routing_key=self.name)

    def take_all(self) -> list[int]:
        """Take what is there and what comes, until nothing has come for half a second."""
        taken: list[int] = []
        idle, pause = 0, Event()
        with self.connect() as connection:
            queue = self.queue(connection.default_channel)
            while idle < 50:
                message: Any = queue.get(no_ack=True)
                if message is None:
                    idle += 1
                    pause.wait(0.01)
                else:
                    idle = 0
                    taken.append(message.payload["number"])
        return taken


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    return Mailbox(tmp_path)


def test_messages_are_taken_in_the_order_of_their_sending(mailbox: Mailbox) -> None:
    mailbox.send(range(20))

    assert mailbox.take_all() == list(range(20))


def test_several_readers_and_writers_lose_tear_and_double_nothing(mailbox: Mailbox) -> None:
    with ThreadPoolExecutor(6) as pool:
        writers = [
            pool.submit(mailbox.send, range(start, start + MESSAGES)) for start in range(0, 3 * MESSAGES, MESSAGES)
        ]
        readers = [pool.submit(mailbox.take_all) for _ in range(3)]
        for writer in writers:
            writer.result()
        taken = [number for reader in readers for number in reader.result()]
    taken += mailbox.take_all()

    assert sorted(taken) == list(range(3 * MESSAGES))


def test_size_and_purge_see_one_queue_alone(mailbox: Mailbox, tmp_path: Path) -> None:
    other = Mailbox(tmp_path)
    other.name = f"{mailbox.name}.other"
    mailbox.send(range(3))
    other.send(range(2))

    with other.connect() as connection:
        channel: Any = connection.default_channel
        assert channel.queue_declare(other.name).message_count == 2
        assert other.queue(channel).purge() == 2

    assert other.take_all() == []
    assert mailbox.take_all() == [0, 1, 2]


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: embedded.local_secret(path), range(8)))

    assert len(secrets) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
