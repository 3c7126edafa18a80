"""The broker: a probe with kombu that declares nothing, and a look into Redis. Bounded in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from celery import current_app
from kombu import Connection

from maintenance.checks import AMQP, REDIS
from maintenance.conf import get_settings
from maintenance.doctor import redis
from maintenance.doctor.findings import Finding, error, info, ok, warning
from maintenance.errors import kind_of

ANSWER_SECONDS = 2
"""How long one answer may take."""
BUDGET_SECONDS = 8.0
"""How long the whole probe may take, whatever the transport makes of the above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeen:
    """One queue as the broker describes it."""

    name: str
    exists: bool
    messages: int = 0
    consumers: int | None = None
    """`None`: this kind of broker does not know."""


@dataclass(slots=True)
class Probe:
    """What the probe found so far; read also when it was given up."""

    uri: str
    transport: str
    seconds: float = 0.0
    queues: list[QueueSeen] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    failure: BaseException | None = None


def examine() -> list[Finding]:
    """Whether the broker takes messages, how many wait, who takes them, and whether it may lose them."""
    connection = current_app.connection_for_write()
    probe = Probe(uri=_shown(connection), transport=str(connection.transport_cls))
    _limit(connection, probe.transport)
    started = time.monotonic()
    ended = _within(BUDGET_SECONDS, lambda: _look(connection, probe))
    probe.seconds = time.monotonic() - started
    if not ended:
        return [_unreachable(probe, f"it did not answer within {BUDGET_SECONDS:.0f} s")]
    if probe.failure is not None:
        return [_unreachable(probe, kind_of(_socket_error(probe.failure)))]
    reached = ok("broker.reach", f"The broker {probe.uri} answers ({probe.seconds:.2f} s).")
    return [reached, *(_told(queue) for queue in probe.queues), *probe.findings]


def _unreachable(probe: Probe, why: str) -> Finding:
    text = f"The broker {probe.uri} cannot be reached ({why}). Accepted work is kept and waits."
    hint = "Start it, or correct BROKER_URL. Meanwhile `manage.py maintenance sweep --inline` runs what is due."
    return error("broker.reach", text, hint)


def _socket_error(failure: BaseException) -> BaseException:
    """What the socket said, under what kombu and redis-py made of it: only that tells refused from silent."""
    deeper: BaseException | None = failure
    while deeper is not None:
        if isinstance(deeper, OSError):
            return deeper
        deeper = deeper.__cause__ or deeper.__context__
    return failure


def _shown(connection: Connection) -> str:
    """The address without its password; kombu shows one even where there is none."""
    shown: str = connection.as_uri()
    return shown if connection.password else shown.replace(":**@", "", 1)


def _limit(connection: Connection, transport: str) -> None:
    """Bounds every answer, also in a project that forgot to."""
    limits: dict[str, Any] = {}
    if transport in REDIS:
        limits = {
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": ANSWER_SECONDS,
            "retry_on_timeout": False,
        }
    elif transport in AMQP:
        limits = {"read_timeout": ANSWER_SECONDS, "write_timeout": ANSWER_SECONDS}
    connection.connect_timeout = ANSWER_SECONDS
    connection.transport_options = {**(connection.transport_options or {}), **limits}


def _within(seconds: float, look: Callable[[], None]) -> bool:
    """Runs `look` on a thread of its own; `False` if it had to be left behind."""
    thread = threading.Thread(target=look, name="wakeful-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _look(connection: Connection, probe: Probe) -> None:
    try:
        with connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=ANSWER_SECONDS)
            settings = get_settings()
            probe.queues = [_queue(connection, name, probe) for name in (settings.queue, settings.control_queue)]
            if probe.transport in REDIS:
                channel: Any = connection.default_channel
                probe.findings = redis.examine(channel.client)
    except Exception as failure:  # noqa: BLE001 - handed to the thread that waits
        probe.failure = failure


def _queue(connection: Connection, name: str, probe: Probe) -> QueueSeen:
    # A channel of its own: RabbitMQ closes the channel on which a missing queue was asked for.
    channel = cast("Any", connection.channel())
    try:
        seen = channel.queue_declare(queue=name, passive=True)
    except connection.channel_errors:
        # A Redis list without elements does not exist.
        return QueueSeen(name=name, exists=probe.transport in REDIS)
    consumers = int(seen.consumer_count) if probe.transport in AMQP else None
    channel.close()
    return QueueSeen(name=name, exists=True, messages=int(seen.message_count), consumers=consumers)


def _told(queue: QueueSeen) -> Finding:
    subject = f"broker.queue.{queue.name}"
    if not queue.exists:
        text = f"The queue {queue.name!r} does not exist yet: no message was ever sent and no worker has started."
        return warning(subject, text, f"Start a worker that takes it: celery -A PROJECT worker --queues {queue.name}")
    waiting = f"The queue {queue.name!r} holds {queue.messages:,} messages"
    if queue.consumers is None:
        return info(subject, f"{waiting}.")
    if queue.consumers == 0:
        hint = f"Start a worker that takes it, or correct the name: celery -A PROJECT worker --queues {queue.name}"
        return warning(subject, f"{waiting} and no worker takes them.", hint)
    return ok(subject, f"{waiting}, taken by {queue.consumers} consumers.")
