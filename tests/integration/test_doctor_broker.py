"""The doctor's look at the broker: reach, queues, eviction, persistence, all in bounded time (field reports B2, D3)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest
from celery import current_app
from redis.exceptions import NoPermissionError

from maintenance.doctor import Finding, Level, broker, redis


@pytest.fixture
def celery_conf(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that changes Celery's configuration for this test."""

    def change(**values: Any) -> None:
        for key, value in values.items():
            monkeypatch.setitem(current_app.conf, key, value)

    return change


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Return a port that accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    """Return a port that refuses connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


def found(findings: list[Finding], subject: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.id == subject]
    return finding


# --- Broker -------------------------------------------------------------------------------------


@pytest.mark.broker
def test_the_broker_in_use_answers_and_its_queues_are_counted() -> None:
    findings = broker.examine()

    assert found(findings, "broker.reach").level is Level.OK
    for queue in ("maintenance", "maintenance.control"):
        assert "0 messages" in found(findings, f"broker.queue.{queue}").text


@pytest.mark.broker
def test_d3_a_queue_that_nobody_takes_from_shows_its_messages(settings: Any, celery_app: Any) -> None:
    queue = celery_app.amqp.queues["maintenance"]
    with celery_app.connection_for_write() as link, link.Producer() as producer:
        for _ in range(3):
            producer.publish({}, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue])

    finding = found(broker.examine(), "broker.queue.maintenance")

    assert "holds 3 messages" in finding.text
    if str(celery_app.connection_for_write().transport_cls) in {"amqp", "pyamqp"}:
        assert finding.level is Level.WARNING
        assert "no worker takes them" in finding.text


@pytest.mark.broker
def test_a_queue_that_does_not_exist_is_told_and_not_made(settings: Any, celery_app: Any) -> None:
    settings.MAINTENANCE = {"QUEUE": "never.declared"}
    transport = str(celery_app.connection_for_write().transport_cls)

    for _ in range(2):  # the first look must not have made it
        finding = found(broker.examine(), "broker.queue.never.declared")
        assert ("does not exist" in finding.text) is (transport in {"amqp", "pyamqp"})


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_refuses_is_said_at_once_and_without_its_password(
    scheme: str, closed_port: int, celery_conf: Callable[..., None]
) -> None:
    celery_conf(broker_url=f"{scheme}://x:swordfish@127.0.0.1:{closed_port}//", broker_transport_options={})
    started = time.monotonic()

    (finding,) = broker.examine()

    assert time.monotonic() - started < 4
    assert (finding.id, finding.level) == ("broker.reach", Level.ERROR)
    assert "ConnectionRefusedError" in finding.text
    assert f"127.0.0.1:{closed_port}" in finding.text
    assert "swordfish" not in finding.text + finding.hint


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_silent_holds_the_doctor_for_its_budget_at_most(
    scheme: str, silent_port: int, celery_conf: Callable[..., None]
) -> None:
    """Also in a project that forgot the timeouts (an error of its own, E021)."""
    celery_conf(broker_url=f"{scheme}://x:y@127.0.0.1:{silent_port}//", broker_transport_options={})
    started = time.monotonic()

    (finding,) = broker.examine()

    assert time.monotonic() - started < broker.BUDGET_SECONDS + 1
    assert (finding.id, finding.level) == ("broker.reach", Level.ERROR)
    assert "TimeoutError" in finding.text


def test_a_transport_that_keeps_no_timeout_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Event()
    monkeypatch.setattr(broker, "BUDGET_SECONDS", 0.05)
    monkeypatch.setattr(broker, "_look", lambda *_: never.wait(30))

    (finding,) = broker.examine()
    never.set()

    assert "did not answer within" in finding.text


# --- Redis --------------------------------------------------------------------------------------


class StubRedis:
    """Answers `INFO` and `CONFIG GET`, or refuses them as a managed Redis does."""

    def __init__(self, info: dict[str, Any] | None = None, config: dict[str, str] | None = None) -> None:
        self._info, self._config = info, config

    def info(self, section: str) -> dict[str, Any]:
        if self._info is None:
            raise NoPermissionError
        return self._info

    def config_get(self, name: str) -> dict[str, str]:
        if self._config is None:
            raise NoPermissionError
        return {name: self._config[name]} if name in self._config else {}


@pytest.mark.parametrize(
    ("policy", "limit", "level", "words"),
    [
        ("noeviction", 0, Level.OK, "never evicts"),
        ("allkeys-lru", 2_000_000, Level.WARNING, "when its memory is full"),
        ("allkeys-random", 0, Level.WARNING, "as soon as a memory limit is set"),
        ("volatile-lru", 2_000_000, Level.INFO, "only keys with an expiry"),
    ],
)
def test_b2_an_eviction_policy_that_may_lose_queues_is_a_warning(
    policy: str, limit: int, level: Level, words: str
) -> None:
    client: Any = StubRedis(info={"maxmemory_policy": policy, "maxmemory": limit}, config={})

    finding = found(redis.examine(client), "redis.eviction")

    assert finding.level is level
    assert words in finding.text


@pytest.mark.parametrize(
    ("info", "config", "words"),
    [
        ({"aof_enabled": 1}, {"save": ""}, "keeps messages over a restart"),
        ({"aof_enabled": 0}, {"save": "3600 1"}, "takes snapshots (save 3600 1)"),
        ({"aof_enabled": 0}, {"save": ""}, "keeps nothing on disk"),
        ({"aof_enabled": 0}, None, "does not tell whether"),
    ],
)
def test_what_a_restart_of_redis_loses_is_told(info: dict[str, Any], config: dict[str, str] | None, words: str) -> None:
    client: Any = StubRedis(info=info, config=config)

    assert words in found(redis.examine(client), "redis.persistence").text


def test_a_redis_that_refuses_to_tell_is_no_error() -> None:
    client: Any = StubRedis()

    assert [finding.level for finding in redis.examine(client)] == [Level.INFO, Level.INFO]


@pytest.mark.broker
def test_b2_a_real_redis_tells_its_policy(celery_app: Any) -> None:
    transport = str(celery_app.connection_for_write().transport_cls)

    told = {finding.id for finding in broker.examine()} & {"redis.eviction", "redis.persistence"}

    assert told == ({"redis.eviction", "redis.persistence"} if transport == "redis" else set())
