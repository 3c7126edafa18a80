"""`manage.py maintenance doctor`: each thing that may keep work from being done (field reports B2, D1, D3)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection
from django.utils import timezone

from maintenance import clock
from maintenance.doctor import Finding, Level, broker, database, examine
from maintenance.models import WorkerHeartbeat
from maintenance.testing import frozen_clock
from tests.commands import maintenance
from tests.factories import MS, make_row

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
@pytest.mark.parametrize("dropped", ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"])
def test_a_limit_that_a_pooler_dropped_is_a_warning_that_names_it(dropped: str) -> None:
    assert found(database.examine(), "database.limits").level is Level.OK
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL {dropped} = 0")

    finding = found(database.examine(), "database.limits")

    assert finding.level is Level.WARNING
    assert f"No limit is set for {dropped}:" in finding.text
    assert f"SET {dropped} =" in finding.hint


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
