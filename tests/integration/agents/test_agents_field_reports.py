"""Failures that others reported: cancelling, tools, waits for people, retries. Each test is named by its report."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connection, transaction

from agents import api, failpoints
from agents.errors import UnknownSubmission
from agents.models import Approval, Attempt, Submission
from maintenance import operations, rearm
from maintenance.delivery import Outcome
from maintenance.models import OperatorAction
from maintenance.testing import Crash, deliver, fixed_jitter
from tests.agents_kit import LEASE, agents_database, endings, families, run, run_after_a_death, settled, sound
from tests.arrivals import arrive
from tests.concurrency import elsewhere
from tests.factories import row_of
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

HOUR = timedelta(hours=1)


# --- F: sessions --------------------------------------------------------------------------------


def open_transactions() -> int:
    """How many sessions of this database hold a transaction open and do nothing, seen from another one."""

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
            )
            return int(cursor.fetchone()[0])

    return elsewhere(count) if connection.vendor == "postgresql" else 0


def test_f6_no_foreign_code_runs_inside_a_transaction(
    declare: Declare, world: World, settings: Settings, points: Failpoints
) -> None:
    """Whatever it takes its time for, no row is locked and no session is idle in a transaction meanwhile."""
    seen: list[tuple[str, bool, int]] = []

    def look(where: str) -> str:
        seen.append((where, connection.in_atomic_block, open_transactions()))
        return where

    def looked_up(_: api.OpenCall) -> api.Done:
        return api.Done(look("reconciler"))

    world.tool("charge", does=lambda: look("tool"), reconcile=looked_up)

    def handler(ctx: api.Context, _: Any) -> list[Any]:
        return [look("handler"), ctx.step("one", look, "step"), ctx.call_tool("charge", amount=5)]

    declare("looking", handler)
    receipt = api.submit("t", "looking", None)
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()

    assert settled(receipt).result == ["handler", "step", "reconciler"]
    assert {where for where, *_ in seen} == {"handler", "step", "tool", "reconciler"}
    assert {(atomic, idle) for _, atomic, idle in seen} == {(False, 0)}


# --- H: cancelling ------------------------------------------------------------------------------


def test_h1_a_message_that_waited_for_aborted_work_does_nothing(declare: Declare, sent: list[Hint]) -> None:
    """The work is cancelled in its row, so it does not matter who was running when, and who remembers."""
    entered: list[Any] = []
    declare("noting", lambda _ctx, given: entered.append(given))
    receipt = api.submit("t", "noting", 1)
    api.abort(receipt, reason="a mistake")

    for hint in list(sent):
        arrive(hint.seq)
    again = [arrive(hint.seq).outcome for hint in list(sent)]

    assert settled(receipt).outcome == "aborted"
    assert set(again) <= {Outcome.CLEARED, Outcome.SUPERSEDED}
    assert entered == []


# --- L: what a dead worker leaves ---------------------------------------------------------------


def test_l11_work_of_a_dead_worker_is_aborted_when_its_lease_has_expired(
    declare: Declare, echo: str, points: Failpoints
) -> None:
    declare("noting", lambda ctx, _: ctx.step("one", lambda: 1))
    ghost = api.submit("t", "noting", None)
    crash(points, failpoints.CLAIM_AFTER)
    generation = row_of().dirty

    later = api.submit("t", echo, 2)
    api.abort(ghost, reason="its worker is gone")

    assert row_of().dirty == generation + 2
    assert deliver("t").outcome is Outcome.BUSY
    run_after_a_death()
    assert (settled(ghost).outcome, settled(later).result) == ("aborted", 2)
    assert "step-settled" not in families()
    sound()


# --- M: effects ---------------------------------------------------------------------------------


def test_m1_effects_before_the_one_that_was_cut_off_are_not_repeated(
    declare: Declare, world: World, points: Failpoints
) -> None:
    for name in "ab":
        world.tool(name)
    world.tool("c", kind="idempotent")
    declare("buyer", lambda ctx, _: [ctx.call_tool(name, amount=1) for name in "abc"])
    receipt = api.submit("t", "buyer", None)
    for _ in "ab":
        points.arm(failpoints.TOOL_SETTLED, lambda _: None)
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()

    assert settled(receipt).result == ["a 1", "b 1", "c 1"]
    assert world.did == ["a", "b", "c", "c"]
    assert len(set(world.keys[2:])) == 1


class Backup:
    """Every row of the two apps as it was at one moment."""

    def __init__(self) -> None:
        self._rows = {model: list(model._default_manager.all()) for model in MODELS}

    def restore(self) -> None:
        with transaction.atomic():
            for model in MODELS:
                model._default_manager.all()._raw_delete(DEFAULT_DB_ALIAS)
            for model, rows in self._rows.items():
                model._default_manager.bulk_create(rows)


MODELS = [
    model for label in ("wakeful_agents", "wakeful_maintenance") for model in apps.get_app_config(label).get_models()
]


def test_r20_a_call_that_a_restored_log_still_shows_as_open_is_shown_to_a_person(
    declare: Declare, echo: str, world: World
) -> None:
    """What came after the backup is gone, the charge is not: nobody makes it again, and a person knows it was made."""
    taken: list[Backup] = []
    world.tool("charge", does=lambda: taken.append(Backup()))
    declare("buyer", lambda ctx, _: ctx.call_tool("charge", amount=5))
    receipt = api.submit("t", "buyer", None)
    run()
    later = api.submit("t", echo, 1)
    run()
    assert settled(later).outcome == settled(receipt).outcome == "completed"

    taken[0].restore()
    run_after_a_death()

    sound(all_settled=False)
    assert call_rows() == [("charge", "unknown", 1)]
    with pytest.raises(UnknownSubmission):
        api.settlement(later)
    api.resolve_unknown(receipt, "charge", "completed-with-result", result="charged", actor="ann", reason="the bank")
    run()
    assert settled(receipt).result == "charged"
    assert world.did == ["charge"]
    sound()


# --- N: waiting for people ----------------------------------------------------------------------


@pytest.fixture
def asked(declare: Declare) -> api.Receipt:
    """Return a submission that waits for a person."""
    declare("asker", lambda ctx, _: ctx.approval("refund", "refund").decision)
    receipt = api.submit("t", "asker", None)
    run()
    return receipt


def test_n3_a_wait_for_a_person_holds_no_lease_and_has_no_alarm(asked: api.Receipt, sent: list[Hint]) -> None:
    """It lives in rows alone: no process has to outlive it, and none is occupied by it."""
    row = row_of()
    assert (row.lease_token, row.alarm_at, row.timer_at, row.is_dirty) == (None, None, None, False)
    assert endings() == ["suspended"]
    sent.clear()

    api.resolve_approval(asked, "approved", name="refund", reason="fine")

    assert [hint.thread_id for hint in sent] == ["t"]
    assert arrive(sent[0].seq).outcome is Outcome.RAN
    assert settled(asked).result == "approved"


@pytest.mark.parametrize("place", [failpoints.DECIDE_BEFORE, failpoints.DECIDE_WRITTEN, failpoints.DECIDE_AFTER])
def test_n8_a_decision_whose_web_process_died_is_given_again_and_stands_once(
    asked: api.Receipt, points: Failpoints, place: str
) -> None:
    """Only what was committed is told: the first answer that anybody gets is one that stands."""
    approval = Approval.objects.get()
    points.crash_at(place)
    with pytest.raises(Crash):
        api.resolve_approval(approval.pk, "approved", actor="ann", reason="fine")
    stands = place == failpoints.DECIDE_AFTER
    approval.refresh_from_db()
    assert (approval.decision, row_of().is_dirty) == (("approved", True) if stands else ("", False))

    decided = api.resolve_approval(approval.pk, "approved", actor="ann", reason="fine")
    assert (decided.decision, decided.resolver) == ("approved", "ann")
    assert api.explain(asked).sentence.startswith("Has what it waited for")
    run()

    assert settled(asked).result == "approved"
    assert families().count("approval-decided") == 1
    assert OperatorAction.objects.filter(action="resolve_approval").count() == 1


# --- O: trying again ----------------------------------------------------------------------------


def test_o3_the_count_of_tries_outlives_a_dead_worker_and_its_waits_grow_to_the_cap(
    declare: Declare, points: Failpoints, frozen: FrozenClock, settings: Settings
) -> None:
    """Neither a death nor a pause begins the count again; a wait of a day is a wait of a day."""
    settings.AGENTS = {
        "RETRY_BACKOFF_BASE_MS": 3_600_000,
        "RETRY_BACKOFF_CAP_MS": 86_400_000,
        "RETRY_BUDGET": 1_000,
    }

    def fails(_ctx: api.Context, _: Any) -> None:
        raise ConnectionError

    declare("hopeless", fails, retry=(ConnectionError,))
    api.submit("t", "hopeless", None)
    waits: list[float] = []

    def try_again() -> None:
        with fixed_jitter(0):
            run()
        until = Submission.objects.get().wake_at
        assert until is not None
        waits.append((until - frozen.at) / HOUR)
        frozen.at = until

    try_again()
    try_again()
    crash(points, failpoints.CLAIM_AFTER)
    frozen.at += LEASE
    try_again()
    operations.pause("t", actor="ann", reason="a look")
    assert run() == []
    operations.resume("t", actor="ann", reason="go on")
    for _ in range(3):
        try_again()

    assert waits == [0.5, 1, 4, 8, 12, 12]
    assert Attempt.objects.count() == 7
    assert rearm.exponential(HOUR, 24 * HOUR, 5_000) == 24 * HOUR
