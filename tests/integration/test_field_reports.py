"""Failures that others reported: deliveries and transactions. Each test is named by its report.

Only what shows without worker processes (those are under `tests/process`). A case that another file proves by the
rule it follows bears its report's id there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from maintenance import alarm, dispatch, sweep
from maintenance.delivery import Outcome
from maintenance.gate import mutation
from maintenance.models import PassRun
from maintenance.ports import Work
from maintenance.testing import Crash, run_due_passes
from tests.arrivals import arrive, raise_it
from tests.factories import make_row, numbers, row_of
from tests.jobs import execute, table_of_jobs
from tests.marks import maintenance_database
from tests.stubs import fail

if TYPE_CHECKING:
    from celery import Celery
    from django.test import Client
    from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database

SECOND = timedelta(seconds=1)


# --- A: delayed messages ------------------------------------------------------------------------


def test_a8_a_broker_that_swallows_delayed_messages_costs_one_sweep_interval(
    stage: Stage, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[Hint] = []
    monkeypatch.setattr(dispatch, "send", lambda hint: arrived.append(hint) if hint.eta is None else None)
    make_row(3, 3)
    alarm.ensure_scheduled_by("t", frozen.at + 3 * SECOND)
    due_at = frozen.at + 3 * SECOND

    while not arrived:
        frozen.at += SECOND
        sweep.sweep()

    assert frozen.at - due_at == SECOND
    assert arrive(arrived[0].seq).outcome is Outcome.RAN


# --- C: enqueue and transaction -----------------------------------------------------------------


def touch_and_look(request: HttpRequest) -> HttpResponse:
    """A view that mutates and then tells how many hints are out."""
    with mutation("t"):
        pass
    return HttpResponse(str(len(HINTS_OUT)))


HINTS_OUT: list[Hint] = []
urlpatterns = [path("touch/", touch_and_look)]


@pytest.mark.django_db(transaction=True)
def test_c1_under_atomic_requests_nothing_is_published_before_the_commit(
    stage: Stage, client: Client, settings: Settings, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(dispatch, "send", HINTS_OUT.append)
    HINTS_OUT.clear()

    inside = client.get("/touch/").content

    assert inside == b"0"
    assert [hint.seq for hint in HINTS_OUT] == [1]
    assert arrive(1).outcome is Outcome.RAN
    assert row_of().processed == 2


def test_c2_a_mutation_that_is_rolled_back_leaves_nothing_and_two_in_one_transaction_send_one_message(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    with pytest.raises(Crash), transaction.atomic(), mutation("t"):
        raise Crash
    with transaction.atomic(), pytest.raises(Crash), mutation("t"):
        raise Crash
    assert numbers(frozen.at) == (3, 3, 0, None)
    assert sent == []

    with transaction.atomic():
        for _ in range(2):
            with mutation("t"):
                pass
    assert numbers(frozen.at) == (5, 3, 0, 0)
    assert len(sent) == 1


def die_after_the_commit_and_mutate() -> None:
    transaction.on_commit(lambda: raise_it(Crash()))
    with mutation("t"):
        pass


def test_c3_dying_between_the_commit_and_its_hooks_costs_one_grace_of_the_sweep(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    with pytest.raises(Crash), transaction.atomic():
        die_after_the_commit_and_mutate()
    assert numbers(frozen.at) == (2, 0, 0, 0)
    assert sent == []

    frozen.at += 5 * SECOND
    assert sweep.sweep() == 1


def test_c5_a_failing_enqueue_is_seen_by_nobody_and_repaired_by_the_sweep(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    with monkeypatch.context() as broken:
        broken.setattr(dispatch, "send", fail)
        with mutation("t"):
            pass
        with transaction.atomic():
            with mutation("t"):
                pass
            transaction.on_commit(lambda: ran.append("the application's own"))
    assert ran == ["the application's own"]

    dispatch.close_breaker()
    sent: list[Hint] = []
    monkeypatch.setattr(dispatch, "send", sent.append)
    assert sweep.sweep() == 1


@pytest.fixture
def eager(celery_app: Celery) -> Iterator[None]:
    """Celery runs tasks inside the caller, as many test suites have it."""
    celery_app.conf.task_always_eager = True
    try:
        yield
    finally:
        celery_app.conf.task_always_eager = False


@pytest.mark.django_db
@pytest.mark.usefixtures("eager")
def test_c9_inside_a_test_case_with_eager_tasks_a_pass_runs_once_and_leaves_the_connection_whole(
    frozen: FrozenClock, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    touched: list[int] = []

    def touch_once(work: Work) -> None:
        if not touched:
            touched.append(1)
            with mutation(work.thread_id):
                pass

    with table_of_jobs(after_settling=touch_once) as jobs:
        with django_capture_on_commit_callbacks(execute=True):
            jobs.submit(1)

        assert jobs.settled() == {1: 1}
        assert not row_of().is_dirty
        assert PassRun.objects.count() == 2, "one for the job and one for the touch"
        assert execute("SELECT 1") == [(1,)]


@pytest.mark.django_db
@pytest.mark.usefixtures("eager")
def test_c9_a_deadline_ahead_does_not_spin_in_eager_mode(
    frozen: FrozenClock, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    """Eager mode ignores countdowns: the message that comes early is handed back a bounded number of times."""
    with table_of_jobs() as jobs:
        with django_capture_on_commit_callbacks(execute=True):
            jobs.submit(1, wake=False)

        assert jobs.settled() == {1: 0}
        assert numbers(frozen.at) == (2, 0, 0, 50)


@pytest.mark.django_db
def test_c9_due_passes_run_without_a_broker(frozen: FrozenClock) -> None:
    with table_of_jobs() as jobs:
        jobs.submit(1)
        jobs.submit(1, "u")

        run_due_passes()

        assert (jobs.settled(), jobs.settled("u")) == ({1: 1}, {1: 1})


# --- J: transports ------------------------------------------------------------------------------


def test_j7_a_publisher_that_says_yes_and_drops_a_third_is_made_good_by_sweeps(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, arrived = Random(7), list[dispatch.Hint]()
    monkeypatch.setattr(dispatch, "send", lambda hint: arrived.append(hint) if chance.random() > 0.3 else None)
    threads = [f"t{number}" for number in range(30)]
    with table_of_jobs() as jobs:
        for thread_id in threads:
            jobs.submit(1, thread_id)
        assert len(arrived) < len(threads)

        for _ in range(30):
            while arrived:
                hint = arrived.pop()
                arrive(hint.seq, thread_id=hint.thread_id)
            frozen.at += 5 * SECOND
            sweep.sweep()

        assert all(jobs.settled(thread_id) == {1: 1} for thread_id in threads)
        assert not any(row_of(thread_id).is_dirty for thread_id in threads)
