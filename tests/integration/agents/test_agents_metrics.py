"""What is owed as metrics: a task that beat drives every minute sets the gauges (operators, the design, 5)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import current_app
from django.core.management import call_command
from django_celery_beat.models import PeriodicTask
from prometheus_client import REGISTRY

from agents import api
from agents.models import Attempt, Submission
from agents.tasks import measure_obligations
from maintenance import clock
from tests.agents_kit import run
from tests.statements import counted_statements

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

pytestmark = pytest.mark.django_db


def gauges() -> dict[tuple[str, str], float]:
    """What the gauges show, without what is zero."""
    (family,) = (one for one in REGISTRY.collect() if one.name == "wakeful_obligations")
    shown = {(one.labels["blocked_on"], one.labels["severity"]): one.value for one in family.samples}
    return {kind: value for kind, value in shown.items() if value}


def oldest(blocked_on: str) -> float | None:
    return REGISTRY.get_sample_value("wakeful_oldest_obligation_seconds", {"blocked_on": blocked_on})


def stands_since(thread_id: str, **ago: float) -> None:
    since = clock.now() - timedelta(**ago)
    Submission.objects.filter(thread_id=thread_id).update(created_at=since)
    Attempt.objects.filter(submission__thread_id=thread_id).update(ended_at=since)


@pytest.fixture
def owed(declare: Declare) -> list[api.Receipt]:
    """Return two submissions that wait for a person, one that waits for an event, and one for its turn."""
    handlers: dict[str, Any] = {
        "first": lambda ctx, _: ctx.approval("go", "launch").reason,
        "second": lambda ctx, _: ctx.approval("go", "launch").reason,
        "third": lambda ctx, _: ctx.wait_event("paid"),
    }
    receipts = []
    for name, handler in handlers.items():
        declare(name, handler)
        receipts.append(api.submit(name, name, None))
    run()
    receipts.append(api.submit("third", "third", None))
    return receipts


def test_each_kind_is_counted_by_whom_it_waits_for_and_how_long(owed: list[api.Receipt]) -> None:
    stands_since("first", minutes=11)
    stands_since("second", hours=2)
    assert measure_obligations() == 4
    assert gauges() == {
        ("approval", "aging"): 1,
        ("approval", "overdue"): 1,
        ("event", "ok"): 1,
        ("ready-aged", "ok"): 1,
    }
    assert oldest("approval") == pytest.approx(7_200, abs=60)
    assert oldest("unknown") == 0


def test_the_counts_are_those_of_obligations(owed: list[api.Receipt]) -> None:
    stands_since("first", seconds=600)
    stands_since("second", seconds=3_600)
    measure_obligations()
    listed: dict[tuple[str, str], float] = {}
    for each in api.obligations().entries:
        kind = (each.blocked_on, each.severity)
        listed[kind] = listed.get(kind, 0) + 1
    assert gauges() == listed


def test_what_is_settled_goes_back_to_zero(owed: list[api.Receipt]) -> None:
    measure_obligations()
    for receipt in owed:
        api.abort(receipt, reason="enough")
    run()
    assert measure_obligations() == 0
    assert gauges() == {}
    assert oldest("event") == 0


def test_it_costs_one_statement_beside_a_look_at_the_clock(owed: list[api.Receipt]) -> None:
    with counted_statements() as statements:
        measure_obligations()
    (sql,) = [sql for sql in statements.sql if "clock_timestamp" not in sql]
    assert "logrecord" not in sql


def test_beat_asks_for_it_every_minute_on_the_control_queue() -> None:
    (row,) = PeriodicTask.objects.filter(name__startswith="agents.")
    assert row.task == measure_obligations.name
    assert row.task in current_app.tasks
    assert (row.interval.every, row.interval.period, row.expire_seconds) == (60, "seconds", 60)
    assert row.queue == "maintenance.control"


def test_a_row_that_an_operator_disabled_stays_so() -> None:
    PeriodicTask.objects.filter(name="agents.obligations").update(enabled=False)
    call_command("migrate", verbosity=0)
    assert not PeriodicTask.objects.get(name="agents.obligations").enabled


def test_a_message_of_a_newer_release_is_understood(owed: list[api.Receipt]) -> None:
    assert measure_obligations(unheard_of=1) == 4
