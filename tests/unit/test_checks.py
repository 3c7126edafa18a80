"""Each dangerous configuration is named by its own check; the configuration as shipped is sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import current_app
from django.db import connections

from maintenance import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

SOUND_REDIS = {"visibility_timeout": 3600, "socket_timeout": 1, "socket_connect_timeout": 1}


@pytest.fixture
def celery_conf(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that changes Celery's configuration for this test."""

    def change(**values: Any) -> None:
        for key, value in values.items():
            monkeypatch.setitem(current_app.conf, key, value)

    return change


@pytest.fixture
def redis(celery_conf: Callable[..., None], postgres: None) -> Callable[..., None]:
    """Return a function that puts Redis and PostgreSQL in force, sound but for its options."""

    def use(**options: Any) -> None:
        celery_conf(
            broker_url="redis://127.0.0.1/0",
            broker_transport_options={**SOUND_REDIS, **options},
        )

    return use


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the database pass for PostgreSQL; nothing here connects."""
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")


def ids(check: Callable[..., checks.Messages]) -> set[str]:
    messages = check()
    assert all(message.hint for message in messages), "every finding says what to do"
    return {(message.id or "").removeprefix("wakeful_maintenance.") for message in messages}


def test_the_settings_as_shipped_raise_nothing(redis: Callable[..., None]) -> None:
    redis()

    for check in (
        checks.check_settings,
        checks.check_celery_version,
        checks.check_broker,
        checks.check_delivery,
        checks.check_queues,
        checks.check_databases,
        checks.check_distributions,
    ):
        assert ids(check) == set(), check.__name__


def test_a_dictionary_that_cannot_be_read_is_named(settings: Settings) -> None:
    settings.MAINTENANCE = {"LEASE_TTL": 5}

    assert ids(checks.check_settings) == {"E000"}
    assert ids(checks.check_ports) == set()


def test_relations_between_settings_become_errors(settings: Settings) -> None:
    settings.MAINTENANCE = {"LEASE_RENEWAL_MS": 20_000, "PASS_DEADLINE_MS": 900_000}

    assert ids(checks.check_settings) == {"E003", "E004"}


def test_a_port_that_cannot_be_imported_is_named(settings: Settings) -> None:
    settings.MAINTENANCE = {"RUNTIME": "maintenance.ports.Missing", "PUBLICATION": ["no.such.Sink"]}

    messages = checks.check_ports()

    assert [message.id for message in messages] == ["wakeful_maintenance.E026"] * 2


def test_a_horizon_near_the_visibility_timeout_is_named(redis: Callable[..., None], settings: Settings) -> None:
    redis()
    settings.MAINTENANCE = {"DISPATCH_HORIZON_MS": 900_000}
    assert ids(checks.check_broker) == set()

    settings.MAINTENANCE = {"DISPATCH_HORIZON_MS": 900_001}
    assert ids(checks.check_broker) == {"E001"}


def test_a_hard_limit_near_the_visibility_timeout_is_named(redis: Callable[..., None]) -> None:
    redis(visibility_timeout=1800)
    assert ids(checks.check_broker) == set()

    redis(visibility_timeout=1799)
    assert ids(checks.check_broker) == {"E002"}


def test_celerys_own_hard_limit_counts_too(redis: Callable[..., None], celery_conf: Callable[..., None]) -> None:
    redis()
    celery_conf(task_time_limit=1801)

    assert ids(checks.check_broker) == {"E002"}


def test_a_visibility_timeout_scaled_down_for_tests_is_taken_at_its_scale(
    redis: Callable[..., None], settings: Settings
) -> None:
    redis(visibility_timeout=36)
    settings.MAINTENANCE = {"TEST_TIME_SCALE": 100}

    assert ids(checks.check_broker) == set()


@pytest.mark.parametrize("missing", ["socket_timeout", "socket_connect_timeout"])
def test_a_missing_socket_timeout_is_named(redis: Callable[..., None], missing: str) -> None:
    redis(**{missing: None})

    (message,) = checks.check_broker()
    assert message.id == "wakeful_maintenance.E021"
    assert missing in str(message.hint)


def test_rabbitmq_needs_its_timeouts_too(celery_conf: Callable[..., None], postgres: None) -> None:
    celery_conf(broker_url="amqp://127.0.0.1//", broker_transport_options={"read_timeout": 1})

    (message,) = checks.check_broker()
    assert message.id == "wakeful_maintenance.E021"
    assert "write_timeout" in str(message.hint)


@pytest.mark.usefixtures("postgres")
def test_an_embedded_broker_beside_postgresql_is_named(celery_conf: Callable[..., None], settings: Settings) -> None:
    celery_conf(broker_url="filesystem://localhost")
    assert ids(checks.check_broker) == {"W020"}

    settings.DEBUG = True
    assert ids(checks.check_broker) == set()


def test_sqlite_behind_a_network_broker_is_named(redis: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    redis()

    assert ids(checks.check_broker) == {"W022"}


def test_a_task_of_ours_that_is_acknowledged_early_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ids(checks.check_delivery) == set()

    monkeypatch.setattr(current_app.tasks["maintenance.run_pass"], "acks_late", False)

    (message,) = checks.check_delivery()
    assert message.id == "wakeful_maintenance.E007"
    assert message.msg.endswith("maintenance.run_pass.")


def test_eager_mode_is_an_error_and_only_a_warning_while_debugging(
    celery_conf: Callable[..., None], settings: Settings
) -> None:
    celery_conf(task_always_eager=True)
    assert ids(checks.check_delivery) == {"E008"}

    settings.DEBUG = True
    assert ids(checks.check_delivery) == {"W008"}


@pytest.mark.parametrize(
    ("conf", "number"),
    [
        ({"task_acks_late": False}, "W007"),
        ({"result_backend": "redis://127.0.0.1/1"}, "W009"),
        ({"task_reject_on_worker_lost": False}, "W027"),
        ({"worker_prefetch_multiplier": 4}, "W029"),
    ],
)
def test_a_celery_setting_that_costs_something_is_a_warning(
    celery_conf: Callable[..., None], conf: dict[str, Any], number: str
) -> None:
    celery_conf(**conf)

    assert ids(checks.check_delivery) == {number}


def test_a_queue_that_nobody_declares_is_named(settings: Settings) -> None:
    settings.MAINTENANCE = {"CONTROL_QUEUE": "elsewhere"}

    (message,) = checks.check_queues()
    assert message.id == "wakeful_maintenance.E028"
    assert "elsewhere" in message.msg


class ReadsFromReplica:
    """A router that would make a finish look at a stale ledger."""

    def db_for_read(self, model: type, **_hints: Any) -> str | None:
        return "replica" if model._meta.app_label == "wakeful_maintenance" else None  # type: ignore[attr-defined]


def test_models_spread_over_two_databases_are_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DATABASE_ROUTERS = [ReadsFromReplica()]
    monkeypatch.setitem(connections.settings, "replica", connections.settings["default"])

    assert ids(checks.check_databases) == {"E006"}


@pytest.mark.usefixtures("postgres")
def test_another_isolation_level_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from psycopg import IsolationLevel

    options = connections["default"].settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "isolation_level", IsolationLevel.READ_COMMITTED)
    assert ids(checks.check_databases) == set()

    monkeypatch.setitem(options, "isolation_level", IsolationLevel.REPEATABLE_READ)
    assert ids(checks.check_databases) == {"E005"}


def test_atomic_requests_are_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)

    assert ids(checks.check_databases) == {"I025"}


def test_a_foreign_distribution_with_our_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "packages_distributions", lambda: {"agents": ["openai-agents", "wakeful"]})

    (message,) = checks.check_distributions()
    assert message.id == "wakeful_maintenance.E023"
    assert "openai-agents" in message.msg


@pytest.mark.parametrize(
    ("version", "expected"),
    [("5.6.2", {"E024"}), ("5.7.0", set()), ("5.9.1", set()), ("6.0.0", {"E024"})],
)
def test_a_celery_that_is_not_proven_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str, expected: set[str]
) -> None:
    monkeypatch.setattr("celery.__version__", version)

    assert ids(checks.check_celery_version) == expected


@pytest.mark.django_db
def test_an_error_stops_workers_and_beat_by_its_name(settings: Settings) -> None:
    settings.MAINTENANCE = {"LEASE_RENEWAL_MS": 20_000}

    with pytest.raises(SystemExit, match=r"wakeful_maintenance\.E003"):
        checks.refuse_errors()


@pytest.mark.django_db
def test_sound_settings_let_workers_start() -> None:
    checks.refuse_errors()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_the_isolation_that_a_role_brings_is_seen() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'serializable'")
        try:
            messages = checks.check_effective_isolation(databases=["default"])
        finally:
            cursor.execute("RESET default_transaction_isolation")

    assert [message.id for message in messages] == ["wakeful_maintenance.E005"]
    assert checks.check_effective_isolation(databases=["default"]) == []
