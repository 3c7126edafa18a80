"""What a process test stands on: a board, the tables of its jobs, scaled times, processes that end with the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.db import connection, transaction

from tests.process.board import Board
from tests.process.entry import Entry
from tests.process.harness import Nursery, Processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery
    from pytest_django.fixtures import Settings
    from pytest_django.plugin import DjangoDbBlocker

SCALE = 10

SCALED: dict[str, Any] = {
    "TEST_TIME_SCALE": SCALE,
    "SWEEP_INTERVAL_MS": 100,
    "SWEEP_GRACE_MS": 500,
    "DISPATCH_HORIZON_MS": 6_000,
    "ENSURE_INTERVAL_MS": 1_000,
    "LEASE_TTL_MS": 3_000,
    "LEASE_RENEWAL_MS": 1_000,
    "LEASE_SELF_CANCEL_MS": 2_400,
    "MUTATION_LEASE_TTL_MS": 1_000,
    "FAILURE_BACKOFF_BASE_MS": 100,
    "FAILURE_BACKOFF_CAP_MS": 1_000,
    "RUNTIME": "tests.process.jobs.JobRuntime",
    "LEDGER": "tests.process.jobs.JobLedger",
    "PUBLICATION": [],
}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Return the folder on which this test and its processes leave orders and notes."""
    return Board(tmp_path / "board").prepare()


@pytest.fixture(scope="session")
def job_tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Make the tables of the jobs: no installed app has them, so no migration does."""
    from tests.process.jobs import MODELS

    with django_db_blocker.unblock(), connection.schema_editor() as editor:
        for model in MODELS:
            editor.create_model(model)


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Replace the plugin's, which truncates every table and migrates again: here a few deletes empty ours.

    The test sees what its processes commit, and they what it commits.
    """
    with django_db_blocker.unblock():
        _empty_tables()
        yield
        _empty_tables()
        connection.close()


def _empty_tables() -> None:
    # In one transaction: the constraints between the tables are checked at its end.
    with transaction.atomic(), connection.cursor() as cursor:
        for label in ("wakeful_agents", "wakeful_maintenance"):
            for model in apps.get_app_config(label).get_models():
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(model._meta.db_table)}")


@pytest.fixture
def maintenance(settings: Settings, board: Board, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings of maintenance that this process and its children share."""
    for name, value in Entry(folder=str(board.folder)).environment().items():
        monkeypatch.setenv(name, value)
    settings.MAINTENANCE = SCALED
    return SCALED


@pytest.fixture(scope="session")
def nursery(child_environment: dict[str, str], celery_app: Celery) -> Iterator[Nursery]:
    """Return the process from which all others are forked; it sees this run's database and broker."""
    started = Nursery({**child_environment, "BROKER_URL": celery_app.conf.broker_url, "LOG_JSON": "1"})
    yield started
    started.close()


@pytest.fixture
def processes(
    transactional_db: None,
    job_tables: None,
    celery_app: Celery,
    nursery: Nursery,
    board: Board,
    maintenance: dict[str, Any],
) -> Iterator[Processes]:
    """Return what starts the processes of this test; they are killed before its tables are emptied."""
    from tests.process.jobs import MODELS

    for model in MODELS:
        model._default_manager.all().delete()
    _empty_queues(celery_app)
    started = Processes(nursery, board, maintenance)
    yield started
    started.stop_all()


def _empty_queues(app: Celery) -> None:
    with app.connection_for_write() as broker:
        for queue in app.amqp.queues.values():
            bound = queue(broker.default_channel)
            bound.declare()
            bound.purge()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function, call: pytest.CallInfo[None]) -> Any:
    """Show with a failure what the test's processes printed."""
    report = yield
    processes = item.funcargs.get("processes")
    if report.failed and isinstance(processes, Processes):
        report.sections.append(("processes", processes.tails()))
    return report
