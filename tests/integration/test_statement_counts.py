"""What each operation costs: exact statements on PostgreSQL, transaction control and health checks left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance import hooks, passes, reaper
from maintenance.delivery import Delivery, Outcome
from maintenance.ensure import ensure_alarm
from maintenance.gate import mutation
from maintenance.hooks import Hooks
from maintenance.lease import Lease, fenced
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.sweep import sweep
from tests.factories import live_lease, make_row
from tests.marks import maintenance_database
from tests.passes import CLAIMABLE
from tests.statements import counted_statements
from tests.stubs import StubLedger, StubRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.postgres, maintenance_database, pytest.mark.usefixtures("sent", "_inert_ports")]

MAINTENANCE_TABLES = (ThreadMaintenance._meta.db_table, PassRun._meta.db_table)


@pytest.fixture
def _inert_ports() -> Iterator[None]:
    with hooks.installed(Hooks()):
        yield


def test_a_mutation_adds_one_statement_to_its_body() -> None:
    make_row(3, 3)
    with counted_statements() as statements, mutation("t"):
        pass
    assert (len(statements), statements.transactions) == (1, 1)


def test_a_threads_first_mutation_adds_two_statements_to_its_body() -> None:
    with counted_statements() as statements, mutation("t"):
        pass
    assert (len(statements), statements.transactions) == (2, 1)


def test_a_mutation_of_a_leased_thread_costs_no_more() -> None:
    make_row(5, 4, 0, 50, **live_lease())
    with counted_statements() as statements, mutation("t"):
        pass
    assert (len(statements), statements.transactions) == (1, 1)


def test_a_superseded_delivery_costs_one_statement() -> None:
    make_row(3, 2, 0, 0, seq=7)
    with counted_statements() as statements:
        assert passes.deliver(Delivery(thread_id="t", seq=6)).outcome is Outcome.SUPERSEDED
    assert (len(statements), statements.transactions) == (1, 1)


@pytest.mark.parametrize(
    ("slot", "outcome"), [(5000, Outcome.EARLY), (None, Outcome.CLEARED)], ids=["early", "cleared"]
)
def test_a_delivery_that_does_not_run_costs_one_statement(slot: float | None, outcome: Outcome) -> None:
    make_row(3, 3, 0, slot, seq=7)
    with counted_statements() as statements:
        assert passes.deliver(Delivery(thread_id="t", seq=7)).outcome is outcome
    assert (len(statements), statements.transactions) == (1, 1)


def test_a_delivery_to_a_held_thread_costs_one_statement() -> None:
    make_row(3, 2, 0, 0, seq=7, **live_lease())
    with counted_statements() as statements:
        assert passes.deliver(Delivery(thread_id="t", seq=7)).outcome is Outcome.BUSY
    assert (len(statements), statements.transactions) == (1, 1)


def test_a_caught_up_pass_is_one_transaction_of_two_statements_and_reads_neither_ledger_nor_log() -> None:
    """The row under its lock; then the row and its line of history, written together."""
    make_row(4, 4, 2, 0, seq=7)
    with counted_statements() as statements:
        assert passes.deliver(Delivery(thread_id="t", seq=7)).outcome is Outcome.RAN
    assert (len(statements), statements.transactions) == (2, 1)
    assert statements.beyond(*MAINTENANCE_TABLES) == []


def test_a_forced_pass_of_a_quiet_thread_costs_the_same() -> None:
    make_row(4, 4, 2)
    with counted_statements() as statements:
        assert passes.deliver(Delivery(thread_id="t", forced=True)).outcome is Outcome.RAN
    assert (len(statements), statements.transactions) == (2, 1)


def test_an_actionable_pass_with_inert_ports_is_two_transactions_of_two_statements() -> None:
    make_row(5, 4, 0, 0, seq=7)
    with counted_statements() as statements:
        assert passes.deliver(Delivery(thread_id="t", seq=7)).outcome is Outcome.RAN
    assert (len(statements), statements.transactions) == (4, 2)


@pytest.mark.parametrize("commits_first", [True, False])
def test_a_pass_in_place_is_begun_by_the_finish_before_it(commits_first: bool) -> None:
    """It costs nothing more, unless user code may run before a commit of that pass: then this one is synchronous."""
    make_row(5, 4, 0, 0, seq=7)
    runtime = StubRuntime([], settled=1, commits_before_user_code=commits_first)
    with hooks.installed(Hooks(runtime=runtime, ledger=StubLedger([], residue=CLAIMABLE))):
        first = passes.deliver(Delivery(thread_id="t", seq=7), may_go_on=lambda: True)
        assert first.next is not None
        with counted_statements() as statements:
            assert passes.go_on(first.next, may_go_on=lambda: True).next is not None
    assert statements.transactions == 1
    assert statements.sql[2:] == ([] if commits_first else ["SET LOCAL synchronous_commit TO DEFAULT"])


def test_a_finish_that_goes_on_with_nothing_commits_asynchronously() -> None:
    make_row(5, 4, 0, 0, seq=7)
    with counted_statements() as statements:
        assert passes.deliver(Delivery(thread_id="t", seq=7), may_go_on=lambda: True).next is None
    assert (len(statements), statements.transactions) == (4, 2)
    assert "'off'" in statements.sql[2]


@pytest.mark.parametrize("progress", [False, True])
def test_a_fenced_write_adds_one_statement(progress: bool) -> None:
    row = make_row(5, 4, 0, 50, **live_lease())
    assert row.lease_token is not None
    with counted_statements() as statements, fenced(Lease("t", row.lease_token, row.lease_epoch), progress=progress):
        pass
    assert (len(statements), statements.transactions) == (1, 1)


def test_an_idle_sweep_is_one_statement() -> None:
    make_row(4, 4, thread_id="quiet")
    make_row(5, 4, 0, 90_000, thread_id="far ahead")
    with counted_statements() as statements:
        assert sweep() == 0
    assert (len(statements), statements.transactions) == (1, 0)


def test_a_sweep_claims_all_that_is_due_with_one_statement() -> None:
    for number in range(5):
        make_row(5, 4, 0, -1, thread_id=f"due-{number}")
    with counted_statements() as statements:
        assert sweep() == 5
    assert (len(statements), statements.transactions) == (1, 0)


def test_a_look_for_dead_owners_is_one_statement() -> None:
    make_row(5, 4, 0, 50, **live_lease())
    with counted_statements() as statements:
        assert reaper.reap() == 0
    assert (len(statements), statements.transactions) == (1, 0)


def test_ensuring_a_quiet_thread_is_two_looks() -> None:
    make_row(4, 4, 1)
    with counted_statements() as statements:
        ensure_alarm("t")
    assert (len(statements), statements.transactions) == (2, 2)
