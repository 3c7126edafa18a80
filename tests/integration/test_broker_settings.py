"""The broker as configured: what goes out, and how soon a publisher is free when nobody answers."""

from __future__ import annotations

import socket
import time
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from config import brokers
from config.probe import DEFAULT_PORTS

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCALHOST = "127.0.0.1"
SCHEMES = ["redis", "amqp"]


def credentials(url: SplitResult) -> str:
    return f"{url.username}:{url.password}@" if url.username else ""


def publisher(url: str) -> Celery:
    """Return an app that publishes as the project's own does, to the broker at `url`."""
    app = Celery("publisher", broker=url, set_as_current=False)
    app.conf.update(
        broker_connection_timeout=brokers.ANSWER_SECONDS,
        broker_transport_options=brokers.transport_options(url, visibility_timeout=3600, folder=Path()),
        task_publish_retry_policy=brokers.PUBLISH_RETRY_POLICY,
    )
    return app


def seconds_until_refused(app: Celery) -> float:
    began = time.monotonic()
    with pytest.raises(OperationalError):
        app.send_task("maintenance.run_pass", ["thread", 1])
    return time.monotonic() - began


@contextmanager
def silent_server() -> Iterator[int]:
    """Accept connections on the yielded port and never say a word."""
    with closing(socket.create_server((LOCALHOST, 0))) as server:
        yield server.getsockname()[1]


class StallingProxy:
    """Stands before a real broker and, once `stalled`, passes nothing on in either direction."""

    def __init__(self, target: int) -> None:
        self.stalled = Event()
        self._target = target
        self._server = socket.create_server((LOCALHOST, 0))
        self.port: int = self._server.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection((LOCALHOST, self._target))
            for source, sink in ((near, far), (far, near)):
                Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with source, sink:
            while data := self._received(source):
                if not self.stalled.is_set():
                    sink.sendall(data)

    def _received(self, source: socket.socket) -> bytes:
        try:
            return source.recv(65_536)
        except OSError:
            return b""

    def close(self) -> None:
        self._server.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_broker_that_refuses_costs_a_publisher_under_a_quarter_second(scheme: str) -> None:
    with silent_server() as port:
        pass  # now nobody listens there

    app = publisher(f"{scheme}://{LOCALHOST}:{port}/")
    seconds_until_refused(app)  # the first also imports the transport
    assert seconds_until_refused(app) < 0.25


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_broker_that_accepts_and_never_answers_costs_under_two_and_a_half_seconds(
    scheme: str,
) -> None:
    with silent_server() as port:
        assert seconds_until_refused(publisher(f"{scheme}://{LOCALHOST}:{port}/")) < 2.5


@pytest.mark.broker
def test_a_broker_that_falls_silent_on_a_living_connection_costs_under_two_and_a_half_seconds(
    celery_app: Celery,
) -> None:
    url = urlsplit(celery_app.conf.broker_url)
    if brokers.is_embedded(url.geturl()):
        return  # a folder cannot fall silent
    with closing(StallingProxy(url.port or DEFAULT_PORTS[url.scheme])) as proxy:
        app = publisher(url._replace(netloc=f"{credentials(url)}{LOCALHOST}:{proxy.port}").geturl())
        app.send_task("maintenance.run_pass", ["thread", 1], queue="maintenance")

        proxy.stalled.set()
        assert seconds_until_refused(app) < 2.5


@pytest.mark.broker
@pytest.mark.parametrize("queue", ["maintenance", "maintenance.control"])
def test_a_message_arrives_in_its_queue_as_json_that_never_expires(celery_app: Celery, queue: str) -> None:
    celery_app.send_task("maintenance.run_pass", ["thread", 1], queue=queue)

    with celery_app.connection_for_read() as connection:
        bound = celery_app.amqp.queues[queue](connection.default_channel)
        message: Any = bound.get(no_ack=True)

    assert message is not None
    assert message.content_type == "application/json"
    assert message.headers["task"] == "maintenance.run_pass"
    assert message.headers["expires"] is None
    assert message.payload[0] == ["thread", 1]
