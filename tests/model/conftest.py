"""The rooms of the model tests: one database for all schedules and machines, emptied between them by hand.

A schedule is too short to pay for a flush of every table of the project.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from tests.model import ledger
from tests.model.schedule import Stage, hurry_commits

if TYPE_CHECKING:
    from pytest_django.plugin import DjangoDbBlocker


@pytest.fixture(scope="package")
def job_tables(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Make the tables of the test ledger."""
    with django_db_blocker.unblock():
        with ledger.tables():
            yield
        connection.close()


@pytest.fixture
def transactional_db(job_tables: None) -> Iterator[None]:
    """Replace the plugin's: an empty database that need not survive a power cut, and no word about each pass."""
    hurry_commits()
    ledger.clean()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    ledger.clean()
    hurry_commits(hurry=False)


@pytest.fixture(scope="package")
def actors(job_tables: None) -> Iterator[Stage]:
    """Return the two actors of a schedule and their observer, each on its own connection."""
    made = Stage()
    yield made
    made.close()
