"""What every test can rely on: its own files, no leftover messages, no silent skip under CI."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.db import connections

from maintenance import dispatch, drain, hooks, renewal, wave
from maintenance.testing import Failpoints, armed_failpoints, frozen_clock
from tests.stubs import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery
    from django.db.backends.utils import CursorWrapper

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint

UNDER_CI = bool(os.environ.get("CI"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what this run cannot execute: a skip would hide it among the passed."""
    on_postgres = connections["default"].vendor == "postgresql"
    soaking = "soak" in config.option.markexpr

    def wanted(item: pytest.Item) -> bool:
        if item.get_closest_marker("postgres") and not on_postgres:
            return False
        return soaking or not item.get_closest_marker("soak")

    unwanted = [item for item in items if not wanted(item)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if wanted(item)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Under CI a skipped test fails the run: what was not tried has not passed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if UNDER_CI and exitstatus == 0 and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("CI: a skipped test fails the run.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what stands for `var/` in this run, so that two runs in one checkout never meet."""
    return tmp_path_factory.mktemp("var")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, run_folder: Path
) -> Iterator[None]:
    """Give SQLite a file: threads and processes must see one database, under its real locks.

    Give PostgreSQL time to create and drop the database: on a busy machine that takes longer than any statement may.
    """
    connection = connections["default"]
    create = connection._nodb_cursor

    @contextmanager
    def without_a_time_limit() -> Iterator[CursorWrapper]:
        with create() as cursor:
            cursor.execute("SET statement_timeout = 0")
            yield cursor

    with pytest.MonkeyPatch.context() as patch:
        if connection.vendor == "sqlite":
            connection.settings_dict["TEST"]["NAME"] = str(run_folder / "test.sqlite3")
        else:
            patch.setattr(connection, "_nodb_cursor", without_a_time_limit)
        yield


@pytest.fixture(scope="session", autouse=True)
def celery_app(run_folder: Path) -> Iterator[Celery]:
    """Return the app, its filesystem broker moved into this run's own folder."""
    from config import embedded
    from config.celery import app

    os.environ["WAKEFUL_VAR"] = str(run_folder)
    if app.conf.broker_url.startswith("filesystem:"):
        app.conf.broker_transport_options = embedded.broker_folders(run_folder / "broker")
    yield app
    app.close()


@pytest.fixture(autouse=True)
def _empty_queues(request: pytest.FixtureRequest, celery_app: Celery) -> None:
    """Begin each broker case with empty queues: an earlier run may have left messages behind."""
    if request.node.get_closest_marker("broker"):
        with celery_app.connection_for_write() as connection:
            for queue in celery_app.amqp.queues.values():
                bound = queue(connection.default_channel)
                bound.declare()
                bound.purge()


@pytest.fixture(scope="session")
def child_environment(django_db_setup: None, run_folder: Path) -> dict[str, str]:
    """Return the environment in which a child process sees this run's database and broker."""
    name = str(connections["default"].settings_dict["NAME"])
    if connections["default"].vendor == "sqlite":
        database_url = f"sqlite:///{name}"
    else:
        server, _, _ = os.environ["DATABASE_URL"].rpartition("/")
        database_url = f"{server}/{name}"
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "SECRET_KEY": settings.SECRET_KEY,
        "WAKEFUL_VAR": str(run_folder),
    }


@pytest.fixture
def worker_environment(transactional_db: None, child_environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a child process for a test whose rows the child shall see."""
    return child_environment


@pytest.fixture
def frozen() -> Iterator[FrozenClock]:
    """Stop the database's clock of this process; a test moves it by assigning to `.at`."""
    with frozen_clock() as clock:
        yield clock


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Hint]:
    """Return the hints that would have gone to the broker, in order.

    By the `monkeypatch` of the test: pytest-django makes it before any fixture here, so that what a test puts in
    this place itself would otherwise be undone after this, and leave our list behind for the next test.
    """
    hints: list[Hint] = []
    monkeypatch.setattr(dispatch, "send", hints.append)
    return hints


@pytest.fixture
def points() -> Iterator[Failpoints]:
    """Return the ordered queue of armed failpoints of this process."""
    with armed_failpoints() as armed:
        yield armed


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Return scripted ports, installed as this process's hooks while the test changes them at will."""
    made = Stage()
    with hooks.installed(made.hooks):
        yield made


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    """End the helper threads of a test: their connections would outlive its database."""
    yield
    renewal.stop()
    wave.stop()
    drain.reset()
    dispatch.close_breaker()
