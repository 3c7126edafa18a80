"""Field report E2: a project with USE_TZ=False and a zone that is not UTC, in summer.

Stored moments are then naive local time, and nothing may look an hour ahead or behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from maintenance import alarm, clock, sweep, tasks
from maintenance.delivery import Outcome
from maintenance.gate import mutation, prearmed_mutation
from maintenance.models import PassRun
from maintenance.testing import deliver, frozen_clock
from tests.arrivals import LEASE, arrive, lease_of_another
from tests.factories import MS, make_row, row_of
from tests.jobs import table_of_jobs
from tests.lossy_transport import URL, Network, broken_network
from tests.marks import maintenance_database
from tests.publishing import publishing_to, take_message
from tests.rest import come_to_rest

if TYPE_CHECKING:
    from celery import Celery
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.usefixtures("_london")]

SECOND = timedelta(seconds=1)
JULY = datetime(2026, 7, 15, 9, 0)  # noqa: DTZ001 - naive on purpose


@pytest.fixture
def _london(settings: Settings) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/London"


@pytest.fixture
def july() -> Iterator[FrozenClock]:
    with frozen_clock(JULY) as still:
        yield still


def test_an_alarm_that_is_overdue_by_a_second_is_seen_at_once_after_a_restart(
    stage: Stage, july: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, -1_000)

    assert sweep.sweep() == 1
    assert [hint.eta for hint in sent] == [None]
    assert arrive(1).outcome is Outcome.RAN


def test_a_lease_expires_to_the_millisecond(stage: Stage, july: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, 0, **lease_of_another(left=LEASE))

    july.at += LEASE - MS
    assert deliver("t").outcome is Outcome.BUSY
    july.at += MS
    assert deliver("t").outcome is Outcome.RAN


def test_by_the_databases_own_clock_what_is_due_runs_and_what_is_ahead_waits(stage: Stage, sent: list[Hint]) -> None:
    make_row(4, 3, 0, -1_000, thread_id="due")
    make_row(4, 3, 0, 5_000, thread_id="ahead")
    make_row(4, 3, 0, 0, thread_id="leased", **lease_of_another(left=5 * SECOND))

    assert deliver("due").outcome is Outcome.RAN
    assert deliver("ahead").outcome is Outcome.EARLY
    assert deliver("leased").outcome is Outcome.BUSY
    run = PassRun.objects.get()
    assert run.due_at is not None
    assert SECOND <= run.started_at - run.due_at < 30 * SECOND


def test_an_eta_names_the_same_moment_in_universal_time(july: FrozenClock, celery_app: Celery) -> None:
    """London is an hour ahead in July: nine o'clock there is eight o'clock here."""
    well = Network(seed=1, now=lambda: july.at, loses=0, doubles=0, delays=timedelta())
    with broken_network(well), publishing_to(celery_app, URL):
        with mutation("t", wake=False):
            pass
        message = take_message(celery_app)

    assert message is not None
    assert datetime.fromisoformat(message[2]["eta"]) == datetime(2026, 7, 15, 8, 0, 0, 50_000, tzinfo=UTC)


def test_a_life_with_both_kinds_of_mutation_ends_settled_and_quiet(july: FrozenClock, sent: list[Hint]) -> None:
    with table_of_jobs() as jobs:
        jobs.submit(1)
        with prearmed_mutation("t", "submit"):
            jobs.submit(2)
        alarm.ensure_scheduled_by("t", july.at + 2 * SECOND)
        come_to_rest(july)

        assert jobs.settled() == {1: 1, 2: 1}
        assert not row_of().is_dirty


def test_the_databases_clock_agrees_with_the_wall(sent: list[Hint]) -> None:
    with mutation("t") as mutated:
        pass

    assert mutated.now.tzinfo is None
    assert abs(mutated.now - datetime.now()) < 30 * SECOND  # noqa: DTZ005 - as the project has it


def test_a_dead_pass_is_recovered_when_its_lease_has_expired(stage: Stage, july: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, 0, **lease_of_another(left=LEASE))
    july.at += LEASE

    assert sweep.sweep() == 1
    assert tasks.run_pass("t", sent[0].seq) == Outcome.RAN
    assert clock.now() == july.at
