"""Where the project's own app publishes to, for the length of a test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import pools

from config import brokers

LOCALHOST = "127.0.0.1"


@contextmanager
def publishing_to(app: Celery, url: str) -> Iterator[None]:
    """Turns the app to another broker, with the options that the project has for one of that kind."""
    before = app.conf.broker_url, app.conf.broker_transport_options
    _turn(app, url, brokers.transport_options(url, visibility_timeout=3_600, folder=Path()))
    try:
        yield
    finally:
        _turn(app, *before)


@contextmanager
def nobody_listens() -> Iterator[str]:
    """The URL of a Redis that refuses connections."""
    with closing(socket.create_server((LOCALHOST, 0))) as server:
        port = server.getsockname()[1]
    yield f"redis://{LOCALHOST}:{port}/0"


@contextmanager
def nobody_answers() -> Iterator[str]:
    """The URL of a Redis that accepts connections and never says a word."""
    with closing(socket.create_server((LOCALHOST, 0))) as server:
        yield f"redis://{LOCALHOST}:{server.getsockname()[1]}/0"


def take_message(app: Celery, queue: str = "maintenance") -> tuple[list[Any], dict[str, Any], dict[str, Any]] | None:
    """The next message of the queue that the app publishes to: arguments, keywords, headers."""
    with app.connection_for_read() as connection:
        message: Any = app.amqp.queues[queue](connection.default_channel).get(no_ack=True)
    if message is None:
        return None
    args, kwargs, _ = message.payload
    return args, kwargs, message.headers


def _turn(app: Celery, url: str, options: dict[str, Any]) -> None:
    app.conf.update(broker_url=url, broker_transport_options=options)
    # The pools of the app belong to the broker that it had when they were made.
    app.amqp._producer_pool = None  # type: ignore[attr-defined]
    app._pool = None  # type: ignore[attr-defined]
    pools.reset()
