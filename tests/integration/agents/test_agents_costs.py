"""What a submission costs, exactly, on PostgreSQL: commits that wrote, statements without transaction control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents import api
from maintenance import drain, passes
from maintenance.delivery import Delivery, Outcome
from maintenance.models import ThreadMaintenance
from maintenance.testing import deliver
from tests.agents_kit import agents_database, run
from tests.statements import Statements, counted_statements

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

pytestmark = [pytest.mark.postgres, agents_database]


@dataclass
class Commits:
    """Transactions that wrote something."""

    writing: list[list[str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.writing)


@contextmanager
def counted_commits() -> Iterator[Commits]:
    """Counts the transactions inside the block that committed a write; an update on its own is one too."""
    counted = Commits()
    with CaptureQueriesContext(connection) as captured:
        yield counted
    inside: list[str] | None = None
    for sql in (query["sql"].strip() for query in captured.captured_queries):
        if sql.startswith("BEGIN"):
            inside = []
        elif sql.startswith("COMMIT") and inside is not None:
            counted.writing += [inside] if Statements(inside).writes() else []
            inside = None
        elif inside is not None:
            inside.append(sql)
        elif Statements([sql]).writes():
            counted.writing.append([sql])


def pass_of(thread_id: str = "t") -> Callable[[], Any]:
    """One pass, by a delivery whose slot is looked up before it is counted."""
    seq = ThreadMaintenance.objects.values_list("alarm_seq", flat=True).get(pk=thread_id)
    return lambda: passes.deliver(Delivery(thread_id=thread_id, seq=seq))


@pytest.fixture(autouse=True)
def _warm(declare: Declare) -> None:
    """A known thread at rest, and an agent with as many steps as it is told."""
    declare("steps", lambda ctx, count: [ctx.step(str(n), lambda: 1) for n in range(count)])
    api.submit("t", "steps", 0)
    run()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_submission_costs_three_commits_and_one_for_each_step(steps: int) -> None:
    """Submit; begin, claim, input; settlement with finish. Each step commits once."""
    with counted_commits() as commits:
        api.submit("t", "steps", steps, idempotency_key="k")
        assert deliver("t").outcome is Outcome.RAN
    assert len(commits) == 3 + steps
    assert api.verify("t", all_settled=True).ok


@pytest.mark.parametrize("steps", [0, 3])
def test_a_pass_with_an_attempt_costs_few_statements(steps: int) -> None:
    """Begin 2; queue 1; claim and input 1; each step 2; settlement with finish 3."""
    api.submit("t", "steps", steps)
    deliver_it = pass_of()
    with counted_statements() as statements:
        assert deliver_it().outcome is Outcome.RAN
    assert (len(statements), statements.transactions) == (7 + 2 * steps, 2 + steps)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_tool_call_costs_two_commits_of_three_statements(declare: Declare, calls: int) -> None:
    """Before the tool runs and after it: fence, record, row."""

    def nothing() -> None: ...

    declare("calls", lambda ctx, count: [ctx.call_tool(nothing) for _ in range(count)])
    api.submit("t", "calls", calls)
    deliver_it = pass_of()
    with counted_commits() as commits, counted_statements() as statements:
        assert deliver_it().outcome is Outcome.RAN
    assert (len(commits), len(statements)) == (2 + 2 * calls, 7 + 6 * calls)


def test_followers_cost_a_pass_nothing_more() -> None:
    for _ in range(30):
        api.submit("t", "steps", 0)
    deliver_it = pass_of()
    with counted_statements() as statements:
        assert deliver_it().outcome is Outcome.RAN
    assert len(statements) == 7


def test_a_pass_reads_nothing_of_what_was_settled_before() -> None:
    """However long the log has become: no statement of a pass reads its records."""
    api.submit("t", "steps", 20)
    run()
    api.submit("t", "steps", 0)
    deliver_it = pass_of()
    with counted_statements() as statements:
        deliver_it()
    assert [sql for sql in statements.sql if "logrecord" in sql and "INSERT INTO" not in sql] == []


def test_a_resumed_attempt_costs_one_commit_for_each_step_it_still_has_to_record(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> int:
        one = ctx.step("one", lambda: 1)
        if ctx.attempt == 1:
            drain.request()
        return int(one + ctx.step("two", lambda: 1))

    declare("yielding", handler)
    api.submit("t", "yielding", None)
    deliver("t")
    drain.reset()
    with counted_commits() as commits:
        deliver("t")
    assert len(commits) == 3 + 1
