"""`manage.py maintenance doctor`: each thing that may keep work from being done (field reports B2, D1, D3)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.apps import apps
from django.db import connection
from django.utils import timezone
from redis.exceptions import NoPermissionError

from maintenance import beat, clock
from maintenance.doctor import Finding, Level, broker, database, examine, redis, work
from maintenance.models import ThreadMaintenance, WorkerHeartbeat
from maintenance.testing import frozen_clock
from tests.commands import maintenance
from tests.factories import MS, live_lease, make_row

pytestmark = pytest.mark.django_db


@pytest.fixture
def celery_conf(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that changes Celery's configuration for this test."""

    def change(**values: Any) -> None:
        for key, value in values.items():
            monkeypatch.setitem(current_app.conf, key, value)

    return change


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the broker out of what is examined."""
    monkeypatch.setattr(broker, "examine", list)


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


def make_alive(worker: str = "host:1", ago: timedelta = timedelta()) -> None:
    seen = clock.now() - ago
    WorkerHeartbeat.objects.create(worker=worker, seen_at=seen, started_at=seen)


def make_late(thread_id: str = "t", by: timedelta = timedelta(minutes=5), **columns: Any) -> None:
    make_row(2, 1, slot_ms=-by / MS, thread_id=thread_id, **columns)


def found(findings: list[Finding], subject: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.id == subject]
    return finding


# --- The whole ----------------------------------------------------------------------------------


def test_a_sound_system_has_no_error_and_exits_0(no_broker: None) -> None:
    make_alive()

    ran = maintenance("doctor", as_json=True)

    assert ran.code == 0, ran.out
    assert ran.json["ok"] is True
    assert {finding["level"] for finding in ran.json["findings"]} <= {"ok", "info", "warning"}
    assert {finding["id"] for finding in ran.json["findings"]} >= {
        "database.reach",
        "database.clock",
        "database.durability",
        "database.migrations",
        "work.overdue",
        "sweep.age",
        "workers.heartbeat",
    }


def test_an_error_makes_the_doctor_exit_1_and_every_trouble_says_what_to_do(no_broker: None) -> None:
    make_late()

    ran = maintenance("doctor", as_json=True)

    assert ran.code == 1
    assert ran.json["ok"] is False
    assert all(each["hint"] for each in ran.json["findings"] if each["level"] in {"warning", "error"})


def test_the_doctor_speaks_one_line_a_finding_and_counts(no_broker: None) -> None:
    make_late()

    lines = maintenance("doctor").out.splitlines()

    assert any(line.startswith("ERROR") and line.endswith("[work.overdue]") for line in lines)
    assert lines[-1].startswith("3 errors, ")


def test_a_part_that_cannot_be_examined_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("the secret is swordfish")

    monkeypatch.setattr(broker, "examine", broken)
    findings = examine()

    assert found(findings, "broker").level is Level.ERROR
    assert "RuntimeError" in found(findings, "broker").text
    assert "swordfish" not in str(findings)
    assert found(findings, "workers.heartbeat").text


def test_the_system_checks_are_part_of_the_examination(no_broker: None, celery_conf: Callable[..., None]) -> None:
    """Eager mode, for one, ignores due times."""
    celery_conf(task_always_eager=True)

    assert found(examine(), "wakeful_maintenance.E008").level is Level.ERROR


def test_a_silenced_check_stays_silent(no_broker: None, celery_conf: Callable[..., None], settings: Any) -> None:
    celery_conf(task_always_eager=True)
    settings.SILENCED_SYSTEM_CHECKS = ["wakeful_maintenance.E008"]

    assert "wakeful_maintenance.E008" not in {finding.id for finding in examine()}


# --- Database -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [timedelta(seconds=5), timedelta(seconds=-5)])
def test_a_clock_that_differs_is_a_warning(ahead: timedelta) -> None:
    with frozen_clock(timezone.now() + ahead):
        finding = found(database.examine(), "database.clock")

    assert finding.level is Level.WARNING
    assert ("ahead of" if ahead > timedelta() else "behind") in finding.text


def test_clocks_that_agree_are_said_to(no_broker: None) -> None:
    assert found(database.examine(), "database.clock").level is Level.OK


@pytest.mark.postgres
def test_commits_that_do_not_wait_for_the_disk_are_an_error() -> None:
    """L1: a receipt means durable."""
    assert found(database.examine(), "database.durability").level is Level.OK
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")

    finding = found(database.examine(), "database.durability")

    assert finding.level is Level.ERROR
    assert "synchronous_commit=off" in finding.text


@pytest.mark.postgres
def test_a_server_without_synchronous_standby_is_told_with_what_to_do_after_a_failover() -> None:
    finding = found(database.examine(), "database.replication")

    assert finding.level is Level.INFO
    assert "ensure --after-failover" in finding.hint


@pytest.mark.parametrize(
    ("standbys", "level", "expected"),
    [("", "on", Level.INFO), ("FIRST 1 (s1)", "on", Level.OK), ("FIRST 1 (s1)", "local", Level.WARNING)],
)
def test_the_standbys_that_commits_wait_for_are_told(standbys: str, level: str, expected: Level) -> None:
    found = database._replication({"synchronous_standby_names": standbys, "synchronous_commit": level})

    assert found.level is expected


@pytest.mark.postgres
def test_the_isolation_level_is_told() -> None:
    assert found(database.examine(), "database.isolation").text == "Transactions are read committed."
    assert database._isolation("repeatable read").level is Level.ERROR


def test_sqlite_that_does_not_wait_for_the_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"PRAGMA journal_mode": "delete", "PRAGMA synchronous": 1}
    monkeypatch.setattr(database, "_one", answers.get)

    findings = database._sqlite()

    assert found(findings, "database.durability").level is Level.ERROR
    assert found(findings, "database.journal").level is Level.WARNING


def test_a_migration_that_is_missing_is_an_error_and_the_rest_is_left_alone(
    no_broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django.db.migrations.recorder.MigrationRecorder.applied_migrations", lambda _: {})
    findings = examine()

    assert "wakeful_maintenance.0001_initial" in found(findings, "database.migrations").text
    assert "work.overdue" not in {finding.id for finding in findings}


@pytest.mark.process
def test_a_database_that_is_down_is_said_and_the_broker_is_looked_at_all_the_same(
    closed_port: int, tmp_path: Any
) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgres://x:swordfish@127.0.0.1:{closed_port}/x",
        "BROKER_URL": "filesystem://localhost",
        "SECRET_KEY": "x",
        "WAKEFUL_VAR": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "manage.py", "maintenance", "doctor"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 1
    assert "[database.reach]" in ran.stdout
    assert "[broker.reach]" in ran.stdout
    assert "swordfish" not in ran.stdout + ran.stderr


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
    from threading import Event

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


# --- Work ---------------------------------------------------------------------------------------


def test_d1_work_that_stands_still_is_an_error_with_count_age_and_queue() -> None:
    make_alive()
    make_late(hint_seq=1, hint_at=clock.now())

    finding = found(work.examine(), "work.overdue")

    assert finding.level is Level.ERROR
    assert "1 thread is overdue, the oldest by 5 min" in finding.text
    assert "not started: queue 'maintenance'" in finding.text
    assert "sweep --inline" in finding.hint


def test_work_that_is_late_for_a_moment_is_a_warning() -> None:
    make_late(by=timedelta(seconds=10), hint_seq=1, hint_at=clock.now())

    assert found(work.examine(), "work.overdue").level is Level.WARNING


def test_due_work_that_no_sweep_has_handed_over_is_told_apart() -> None:
    make_late("handed", hint_seq=1, hint_at=clock.now())
    assert found(work.examine(), "sweep.age").level is Level.OK

    make_late("never")
    make_late("running", **live_lease())
    finding = found(work.examine(), "sweep.age")

    assert finding.level is Level.ERROR
    assert "1 due thread" in finding.text


def test_workers_are_counted_by_their_heartbeats() -> None:
    make_alive("a:1")
    make_alive("b:2", ago=timedelta(seconds=29))
    make_alive("c:3", ago=timedelta(seconds=31))

    finding = found(work.examine(), "workers.heartbeat")

    assert finding.level is Level.OK
    assert finding.text == "2 workers alive: a:1, b:2."


def test_no_worker_is_a_warning_and_with_work_that_waits_an_error() -> None:
    assert found(work.examine(), "workers.heartbeat").text == "No worker was ever seen."
    assert found(work.examine(), "workers.heartbeat").level is Level.WARNING

    make_alive(ago=timedelta(hours=2))
    make_late()

    finding = found(work.examine(), "workers.heartbeat")
    assert finding.level is Level.ERROR
    assert "last was seen 2 h ago" in finding.text


def test_a_thread_in_quarantine_is_a_warning_that_names_one() -> None:
    make_late("poison", quarantined_at=clock.now())

    finding = found(work.examine(), "work.quarantine")

    assert finding.level is Level.WARNING
    assert "'poison'" in finding.text


def test_beat_is_told_by_the_time_of_its_last_sweep() -> None:
    from django_celery_beat.models import PeriodicTask

    beat.make_rows()
    row = PeriodicTask.objects.filter(name=beat.SWEEP)
    row.update(last_run_at=None)
    assert "never sent" in found(work.examine(), "sweep.beat").text

    row.update(last_run_at=timezone.now() - timedelta(seconds=3))
    assert found(work.examine(), "sweep.beat").level is Level.OK

    row.update(last_run_at=timezone.now() - timedelta(minutes=10))
    assert "10 min ago" in found(work.examine(), "sweep.beat").text

    row.update(enabled=False)
    assert "disabled" in found(work.examine(), "sweep.beat").text


def test_without_beat_installed_beat_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "is_installed", lambda _: False)

    assert "sweep.beat" not in {finding.id for finding in work.examine()}


def test_the_doctor_changes_nothing(no_broker: None) -> None:
    make_late()
    before = ThreadMaintenance.objects.values().get()

    examine()

    assert ThreadMaintenance.objects.values().get() == before
