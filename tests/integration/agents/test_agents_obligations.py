"""`obligations`: what is owed, whom it waits for, how old it is (ledger-recovery, k; R-06, R-07; 251, 252)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from agents import api
from agents.errors import AgentInputError, RetryLater
from agents.models import Attempt, Submission, ToolCall
from agents.operations.obligations import BlockedOn
from maintenance import clock
from maintenance.models import ThreadMaintenance
from maintenance.testing import frozen_clock
from tests.agents_kit import run
from tests.statements import counted_statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maintenance.clock import FrozenClock
    from tests.integration.agents.conftest import Declare

pytestmark = pytest.mark.django_db
"""Rolled back, not emptied: nothing here needs a second connection."""


@pytest.fixture
def still() -> Iterator[FrozenClock]:
    """Stop the clock once what is owed is there."""
    with frozen_clock() as made:
        yield made


def owed(**options: Any) -> list[api.Obligation]:
    return list(api.obligations(**options).entries)


def aged(seconds: float) -> None:
    """Everything has stood as it does for so long."""
    since = clock.now() - timedelta(seconds=seconds)
    Submission.objects.update(created_at=since)
    Attempt.objects.exclude(ended_at=None).update(ended_at=since)
    ToolCall.objects.update(updated_at=since)


def waiting(declare: Declare, **handlers: Callable[[api.Context, Any], Any]) -> None:
    """One submission of each handler, on a thread of the same name."""
    for name, handler in handlers.items():
        declare(name, handler)
        api.submit(name, name, None)
    run()


def pay() -> None:
    raise api.OutcomeUnknown("no answer came")


def later(ctx: api.Context, _: Any) -> None:
    raise RetryLater("not now", after=600)


def test_r06_a_settled_thread_owes_nothing_and_the_thresholds_are_echoed(echo: str) -> None:
    api.submit("t", echo, 1)
    run()
    page = api.obligations(aging=60, overdue=timedelta(minutes=10))
    assert (page.entries, page.next) == ((), None)
    assert (page.aging_seconds, page.overdue_seconds) == (60, 600)


def test_251_r07_each_state_says_whom_it_waits_for(declare: Declare) -> None:
    waiting(
        declare,
        approval=lambda ctx, _: ctx.approval("refund", "refund"),
        event=lambda ctx, _: ctx.wait_event("paid"),
        timer=lambda ctx, _: ctx.sleep(600, name="nap"),
        retry=later,
        unknown=lambda ctx, _: ctx.call_tool(pay),
    )
    api.submit("event", "event", None)
    assert {(each.thread_id, each.queue_sequence): (each.blocked_on, each.waits_on) for each in owed()} == {
        ("approval", 1): ("approval", "refund"),
        ("event", 1): ("event", "paid"),
        ("timer", 1): ("timer", "nap"),
        ("retry", 1): ("retry", "RetryLater"),
        ("unknown", 1): ("unknown", ""),
        ("event", 2): ("ready-aged", ""),
    }


@pytest.mark.parametrize(
    ("row", "blocked_on"),
    [
        ({"state": "admitted"}, "ready-aged"),
        ({"state": "input_applied", "first_sequence": 2}, "running-aged"),
        ({"state": "terminalizing"}, "running-aged"),
        ({"state": "suspended", "waits_for": "child"}, "waiting-for-child"),
    ],
)
def test_r07_the_other_states(echo: str, row: dict[str, Any], blocked_on: str) -> None:
    api.submit("t", echo, 1)
    Submission.objects.update(**row)
    assert [each.blocked_on for each in owed()] == [blocked_on]


def test_r07_a_follower_that_joined_runs(declare: Declare) -> None:
    seen: list[api.Obligation] = []

    def handler(ctx: api.Context, _: Any) -> None:
        ctx.followups()
        seen.extend(owed())

    declare("gatherer", handler)
    for _ in range(2):
        api.submit("t", "gatherer", None)
    run()
    assert [(each.state, each.blocked_on) for each in seen] == [
        ("input_applied", "running-aged"),
        ("joined", "running-aged"),
    ]


@pytest.mark.parametrize(
    ("seconds", "severity"),
    [(0, "ok"), (59, "ok"), (59.9, "ok"), (60, "aging"), (599, "aging"), (600, "overdue"), (720, "overdue")],
)
def test_252_r06_an_age_at_a_threshold_has_reached_it(
    declare: Declare, still: FrozenClock, seconds: float, severity: str
) -> None:
    waiting(declare, event=lambda ctx, _: ctx.wait_event("paid"))
    aged(seconds)
    (each,) = owed(aging=60, overdue=600)
    assert (each.age_seconds, each.severity) == (int(seconds), severity)


def test_251_after_two_minutes_all_are_aging_and_after_twelve_overdue(declare: Declare, still: FrozenClock) -> None:
    waiting(
        declare,
        unknown=lambda ctx, _: ctx.call_tool(pay),
        approval=lambda ctx, _: ctx.approval("refund", "refund"),
    )
    api.submit("approval", "approval", None)
    for seconds, severity in ((120, "aging"), (720, "overdue")):
        aged(seconds)
        found = owed(aging=60, overdue=600)
        assert sorted(each.blocked_on for each in found) == ["approval", "ready-aged", "unknown"]
        assert {(each.age_seconds, each.severity) for each in found} == {(seconds, severity)}


def test_an_age_is_never_negative(echo: str, still: FrozenClock) -> None:
    api.submit("t", echo, 1)
    Submission.objects.update(created_at=still.at + timedelta(seconds=5))
    assert [each.age_seconds for each in owed()] == [0]


def test_r07_an_unknown_age_counts_from_the_oldest_call_that_nobody_has_answered(
    declare: Declare, still: FrozenClock
) -> None:
    waiting(declare, unknown=lambda ctx, _: ctx.call_tool(pay, name="first"))
    aged(900)
    first = ToolCall.objects.get()
    second = ToolCall.objects.create(
        submission=first.submission,
        call="second",
        tool="pay",
        kind="ordinary",
        arguments="{}",
        status="unknown",
        prepared_at=still.at,
        updated_at=still.at - timedelta(seconds=300),
    )
    assert [each.age_seconds for each in owed()] == [900]
    api.resolve_unknown(first.submission_id, "first", "never-started", reason="looked")
    assert [each.age_seconds for each in owed()] == [300]
    api.resolve_unknown(first.submission_id, second.call, "never-started", reason="looked")
    assert [each.age_seconds for each in owed()] == [900], "answered, but no pass has come: since it stopped"


def test_a_wait_counts_from_its_beginning_and_not_from_the_submission(declare: Declare, still: FrozenClock) -> None:
    waiting(declare, event=lambda ctx, _: ctx.wait_event("paid"))
    aged(100)
    Submission.objects.update(created_at=still.at - timedelta(days=3))
    assert [each.age_seconds for each in owed()] == [100]


# --- Pages --------------------------------------------------------------------------------------


def five(echo: str, still: FrozenClock) -> None:
    """Five threads whose ages are 10, 20, 30, 30 and 40 seconds."""
    for number, seconds in enumerate((10, 20, 30, 30, 40)):
        receipt = api.submit(f"t{number}", echo, 1)
        Submission.objects.filter(pk=receipt.submission_id).update(created_at=still.at - timedelta(seconds=seconds))


def test_pages_go_on_where_the_one_before_ended_oldest_first(echo: str, still: FrozenClock) -> None:
    five(echo, still)
    seen: list[tuple[int, str]] = []
    after = None
    for _ in range(3):
        page = api.obligations(limit=2, after=after)
        seen += [(each.age_seconds, each.thread_id) for each in page.entries]
        after = page.next
    assert after is None
    assert [age for age, _ in seen] == [40, 30, 30, 20, 10]
    assert sorted(thread for _, thread in seen) == ["t0", "t1", "t2", "t3", "t4"]


def test_a_page_that_is_just_full_is_the_last(echo: str, still: FrozenClock) -> None:
    five(echo, still)
    assert api.obligations(limit=5).next is None
    assert api.obligations(limit=4).next is not None


def test_only_what_is_old_enough_is_listed_if_wanted(echo: str, still: FrozenClock) -> None:
    five(echo, still)
    listed = {level: len(owed(aging=20, overdue=40, at_least=level)) for level in ("ok", "aging", "overdue")}
    assert listed == {"ok": 5, "aging": 4, "overdue": 1}


def test_one_thread_can_be_asked_for(echo: str, still: FrozenClock) -> None:
    five(echo, still)
    assert [each.thread_id for each in owed(thread_id="t3")] == ["t3"]


@pytest.mark.parametrize(
    "options",
    [
        {"aging": 60, "overdue": 59},
        {"aging": -1},
        {"aging": float("nan")},
        {"overdue": "soon"},
        {"limit": 0},
        {"limit": 1_001},
        {"after": "somewhere"},
        {"after": "2026-01-01T00:00:00Z/no-id"},
        {"after": "2026-99-01T00:00:00Z/0190b6f0-0000-7000-8000-000000000000"},
        {"at_least": "terrible"},
    ],
)
def test_r05_what_makes_no_sense_is_refused_by_type(options: dict[str, Any]) -> None:
    with pytest.raises(AgentInputError):
        api.obligations(**options)


# --- Cost ---------------------------------------------------------------------------------------


def test_a_page_is_one_statement_and_writes_nothing(declare: Declare, echo: str) -> None:
    waiting(declare, unknown=lambda ctx, _: ctx.call_tool(pay), event=lambda ctx, _: ctx.wait_event("paid"))
    for number in range(5):
        api.submit(f"t{number}", echo, 1)
    before = list(ThreadMaintenance.objects.order_by("pk").values())
    with counted_statements() as statements:
        assert len(owed()) == 7
    assert len([sql for sql in statements.sql if "wakeful_agents" in sql]) == 1
    assert statements.writes() == []
    assert list(ThreadMaintenance.objects.order_by("pk").values()) == before


@pytest.mark.postgres
def test_settled_work_is_not_even_looked_at(echo: str) -> None:
    """The partial index of unsettled submissions can answer: the plan may use it, whatever the table holds."""
    api.submit("t", echo, 1)
    with counted_statements() as statements:
        owed()
    (sql,) = [one for one in statements.sql if "wakeful_agents" in one]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "wakeful_submission_open" in plan


def test_every_way_of_waiting_has_its_word() -> None:
    assert {*BlockedOn} >= {"unknown", "approval", "event", "timer", "retry", "waiting-for-child"}
