"""Recovery (ledger-recovery, e; scenarios N): decisions from the log, their execution, the retry budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError

from agents import api, failpoints, settlement
from agents.models import Attempt, LogRecord, Submission
from agents.recovery import execute
from maintenance import hooks
from maintenance.delivery import Outcome
from maintenance.models import ThreadMaintenance
from maintenance.ports import RecoveryReport
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import (
    LEASE,
    agents_database,
    endings,
    families,
    log,
    run,
    run_after_a_death,
    settled,
    settlements_in_log,
    sound,
)
from tests.statements import Statements, counted_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return decision and disposition of every recovery report, in order, also of heads begun without recovery."""
    seen: list[tuple[str, str]] = []

    def noting(original: Callable[..., Sequence[RecoveryReport]]) -> Callable[..., Sequence[RecoveryReport]]:
        def noted(given: Any) -> Sequence[RecoveryReport]:
            made = original(given)
            seen.extend((report.decision, report.disposition) for report in made)
            return made

        return noted

    runtime = hooks.current().runtime
    monkeypatch.setattr(runtime, "run_recovery", noting(runtime.run_recovery))
    monkeypatch.setattr(execute, "all_wait", noting(execute.all_wait))
    return seen


def crash(points: Failpoints, name: str) -> None:
    points.crash_at(name)
    with pytest.raises(Crash):
        deliver("t")
    travel(LEASE)


def test_193_f15_queued_work_is_reported_and_left_alone(echo: str, reports: list[tuple[str, str]]) -> None:
    for n in range(3):
        api.submit("t", echo, n)
    deliver("t")
    assert reports == [("apply-input", "deferred")] * 3


def test_a_pass_over_work_that_was_never_begun_reads_no_log(echo: str) -> None:
    for n in range(3):
        api.submit("t", echo, n)
    with counted_statements() as statements:
        deliver("t")
    looked_at = {"sequence", "text", "record_id"}
    assert not [sql for sql in reads_of_the_log(statements) if any(name in selected(sql) for name in looked_at)]


def reads_of_the_log(statements: Statements) -> list[str]:
    return [sql for sql in statements.sql if "logrecord" in sql and "INSERT" not in sql]


def selected(sql: str) -> str:
    """The columns that a statement selects."""
    return sql.partition("FROM")[0]


def test_a_begun_submission_is_resumed_from_its_last_step(
    declare: Declare, points: Failpoints, reports: list[tuple[str, str]]
) -> None:
    declare("stepping", lambda ctx, _: ctx.step("one", lambda: 1))
    api.submit("t", "stepping", None)
    crash(points, failpoints.STEP_AFTER)
    run()
    assert reports == [("apply-input", "deferred"), ("resume-from-last-step", "deferred")]


def test_l6_a_settlement_in_the_log_finalizes_the_row_and_runs_nothing(
    declare: Declare, reports: list[tuple[str, str]]
) -> None:
    """History wins. One transaction writes both, so a hand has to have parted them."""
    ran: list[int] = []
    declare("counted", lambda _ctx, given: ran.append(given))
    receipt = api.submit("t", "counted", 1)
    run()
    Submission.objects.update(state="input_applied", outcome="", settled_at=None)
    api.submit("t", "counted", 2)
    reports.clear()

    run()

    assert reports[0] == ("finalize-from-history", "repaired")
    assert ran == [1, 2]
    assert settled(receipt).outcome == "completed"
    assert "repair-annotated" in families()
    assert settlements_in_log() == 2
    sound()


def test_f5_a_follower_that_cannot_be_repaired_does_not_stop_the_head(
    echo: str, monkeypatch: pytest.MonkeyPatch, reports: list[tuple[str, str]]
) -> None:
    receipts = [api.submit("t", echo, n) for n in range(2)]
    run()
    Submission.objects.filter(queue_sequence=2).update(state="input_applied", outcome="", settled_at=None)
    head = api.submit("t", echo, 3)
    Submission.objects.filter(pk=head.submission_id).update(queue_sequence=99)
    Submission.objects.filter(queue_sequence=2).update(queue_sequence=100)
    refuse_once(monkeypatch)

    reports.clear()
    assert deliver("t").outcome is Outcome.RAN

    assert settled(head).outcome == "completed"
    assert reports == [("apply-input", "deferred"), ("finalize-from-history", "deferred")]
    run_after_a_death()
    assert settled(receipts[1]).outcome == "completed"


def test_a_head_that_cannot_be_repaired_is_not_run_over(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    declare("counted", lambda _ctx, given: ran.append(given))
    api.submit("t", "counted", 1)
    run()
    Submission.objects.update(state="input_applied", outcome="", settled_at=None)
    api.submit("t", "counted", 2)
    refuse_once(monkeypatch)

    assert deliver("t").outcome is Outcome.FAILED
    assert ran == [1]
    run_after_a_death()
    assert ran == [1, 2]
    sound()


def refuse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next repair finds the store broken."""
    original = settlement.finalize

    def refuse(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(settlement, "finalize", original)
        raise OperationalError("gone")

    monkeypatch.setattr(settlement, "finalize", refuse)


@pytest.fixture
def small_budget(settings: Settings) -> int:
    """Return how many attempts may end without progress."""
    settings.AGENTS = {"RETRY_BUDGET": 3}
    return 3


class Deadly:
    """A handler whose process dies whenever it runs, until it is cured."""

    def __init__(self) -> None:
        self.entered = 0
        self.steps_before = 0

    def __call__(self, ctx: api.Context, given: Any) -> str:
        self.entered += 1
        for number in range(self.steps_before):
            ctx.step(f"step {number}", lambda: number)  # noqa: B023 - called at once
        if given == "deadly":
            raise Crash("t")
        return "alive"


def die(times: int) -> None:
    for _ in range(times):
        with pytest.raises(Crash):
            deliver("t")
        travel(LEASE)


@pytest.mark.usefixtures("small_budget")
def test_work_that_kills_its_worker_each_time_fails_after_its_budget_and_the_next_goes_on(
    declare: Declare, reports: list[tuple[str, str]]
) -> None:
    deadly = Deadly()
    declare("deadly", deadly)
    poison, healthy = api.submit("t", "deadly", "deadly"), api.submit("t", "deadly", "fine")

    die(3)
    run()

    assert deadly.entered == 4
    found = settled(poison)
    assert (found.outcome, found.attempts) == ("failed", 3)
    assert found.failure is not None
    assert found.failure.error_tag == "AttemptsExhausted"
    assert "3 attempts ended without recorded progress" in found.failure.message
    assert settled(healthy).result == "alive"
    assert ("settle-exhausted", "repaired") in reports
    assert endings() == ["lost", "lost", "lost", "settled"]
    sound()


@pytest.mark.usefixtures("small_budget")
def test_recorded_progress_refills_the_budget(declare: Declare) -> None:
    deadly = Deadly()
    declare("deadly", deadly)
    receipt = api.submit("t", "deadly", "deadly")
    for steps in range(5):
        deadly.steps_before = steps
        die(1)
    assert api.settlement(receipt) is None

    die(3)
    run()

    assert settled(receipt).outcome == "failed"
    assert deadly.entered == 8


@pytest.mark.usefixtures("small_budget")
def test_a_replay_does_not_refill_the_budget(declare: Declare) -> None:
    deadly = Deadly()
    deadly.steps_before = 2
    declare("deadly", deadly)
    receipt = api.submit("t", "deadly", "deadly")
    die(4)
    run()
    assert settled(receipt).outcome == "failed"
    assert deadly.entered == 4


@pytest.mark.usefixtures("small_budget")
def test_attempts_that_were_asked_to_stop_are_free(declare: Declare) -> None:
    deadly = Deadly()
    declare("deadly", deadly)
    receipt = api.submit("t", "deadly", "deadly")
    die(2)
    Attempt.objects.filter(number=1).update(ending="yielded")
    die(1)
    run_one_death_more(receipt)
    assert deadly.entered == 4


def run_one_death_more(receipt: api.Receipt) -> None:
    assert api.settlement(receipt) is None
    die(1)
    run()
    assert settled(receipt).outcome == "failed"


@pytest.mark.usefixtures("small_budget")
@pytest.mark.parametrize("name", [failpoints.REPAIR_BEFORE, failpoints.REPAIR_WRITTEN, failpoints.REPAIR_AFTER])
def test_a_crash_in_a_repair_is_repaired(declare: Declare, points: Failpoints, name: str) -> None:
    deadly = Deadly()
    declare("deadly", deadly)
    receipt = api.submit("t", "deadly", "deadly")
    die(3)
    crash(points, name)
    run()
    assert settled(receipt).outcome == "failed"
    assert settlements_in_log() == 1
    sound()


@pytest.mark.usefixtures("small_budget")
def test_poison_is_settled_before_it_is_quarantined(declare: Declare) -> None:
    declare("deadly", Deadly())
    api.submit("t", "deadly", "deadly")
    die(3)
    run()
    row = ThreadMaintenance.objects.get()
    assert (row.quarantined_at, row.is_dirty, row.alarm_at) == (None, False, None)


def test_evidence_is_read_in_pages_without_texts(declare: Declare, points: Failpoints, settings: Settings) -> None:
    """What recovery reads of a long log is bounded in memory: ids, a page at a time, from the open work on."""
    settings.AGENTS = {"MAX_LOG_PAGE": 10, "LOG_PAGE": 10}
    declare("long", lambda ctx, given: [ctx.step(str(n), lambda: "x" * 100) for n in range(given)])
    api.submit("t", "long", 40)
    run()
    api.submit("t", "long", 25)
    api.submit("t", "long", 0)
    crash(points, failpoints.SETTLE_BEFORE)

    with counted_statements() as statements:
        run()

    by_recovery = [sql for sql in reads_of_the_log(statements) if "family" in selected(sql)]
    assert len(by_recovery) == 3
    assert all("text" not in selected(sql) for sql in by_recovery)
    sound()


def test_a_resumed_attempt_reads_its_steps_in_pages(declare: Declare, points: Failpoints, settings: Settings) -> None:
    settings.AGENTS = {"MAX_LOG_PAGE": 10, "LOG_PAGE": 10}
    bodies: list[int] = []

    def body(number: int) -> int:
        bodies.append(number)
        return number

    declare("long", lambda ctx, given: [ctx.step(str(n), body, n) for n in range(given)])
    receipt = api.submit("t", "long", 25)
    crash(points, failpoints.SETTLE_BEFORE)

    with counted_statements() as statements:
        run()

    assert settled(receipt).result == list(range(25))
    assert len(bodies) == 25
    assert len([sql for sql in reads_of_the_log(statements) if "text" in selected(sql)]) == 3
    assert LogRecord.objects.filter(family="step-settled").count() == 25
    assert log()[-1].family == "submission-settled"
