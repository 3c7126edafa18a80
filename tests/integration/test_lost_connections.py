"""A connection that the server closes under a worker (alarm-host, 16.6; field report F7; M-08 without the restart)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from django.db import OperationalError, connection

from maintenance import tasks
from maintenance.delivery import Outcome
from maintenance.models import PassRun
from maintenance.testing import deliver
from tests.arrivals import arrive
from tests.concurrency import elsewhere
from tests.factories import make_row, row_of
from tests.jobs import execute, table_of_jobs
from tests.marks import maintenance_database
from tests.rest import come_to_rest

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = [maintenance_database, pytest.mark.postgres]


def have_the_connection_closed(*_: object) -> None:
    """The server ends this thread's backend, and nothing here has noticed yet."""
    ((pid,),) = execute("SELECT pg_backend_pid()")
    elsewhere(lambda: execute("SELECT pg_terminate_backend(%s, 5000)", pid))
    assert connection.connection is not None


def test_f7_a_connection_closed_between_two_passes_is_replaced(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 0)
    have_the_connection_closed()

    assert tasks.run_pass("t", 1) == Outcome.RAN
    assert row_of().processed == 4


def test_a_begin_whose_connection_was_closed_begins_once_on_another(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 0)
    have_the_connection_closed()

    assert arrive(1).outcome is Outcome.RAN
    assert (row_of().lease_epoch, PassRun.objects.count()) == (1, 1)


def test_a_begin_whose_commit_was_not_answered_finds_the_lease_that_it_took(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is lost, not the commit: the repetition bears the same token."""
    make_row(4, 3, 0, 0)
    commit = connection._commit  # type: ignore[attr-defined]

    def commit_without_an_answer() -> None:
        monkeypatch.undo()
        commit()
        raise OperationalError from psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(connection, "_commit", commit_without_an_answer)

    assert arrive(1).outcome is Outcome.RAN
    assert stage.calls == ["recovery", "head", "scan"]
    assert (row_of().lease_epoch, PassRun.objects.count()) == (1, 1)


def test_f7_a_finish_whose_connection_was_closed_during_the_attempt_finishes_on_another(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    stage.runtime.on_head = have_the_connection_closed
    make_row(4, 3, 0, 0)

    assert deliver("t").outcome is Outcome.RAN

    assert row_of().processed == 4
    assert PassRun.objects.count() == 1


def test_f7_an_attempt_whose_connection_is_closed_before_its_write_fails_and_settles_later(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    with table_of_jobs() as jobs:
        jobs.submit(1)
        jobs.on_settle = have_the_connection_closed

        assert deliver("t").outcome is Outcome.FAILED
        assert (row_of().failures, row_of().lease_token) == (1, None)
        assert jobs.settled() == {1: 0}

        jobs.on_settle = None
        come_to_rest(frozen)
        assert jobs.settled() == {1: 1}
