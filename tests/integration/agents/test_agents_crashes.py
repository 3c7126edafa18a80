"""A crash at every failpoint of agents, in this process: what is accepted is settled once, in order (LR e.7)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agents import api, failpoints
from agents.canonical import Json
from agents.log import Batch
from agents.models import LogRecord, Submission
from agents.records import NewRecord, StepSettled
from maintenance import drain
from maintenance.delivery import Outcome
from maintenance.errors import OwnershipLost
from maintenance.models import ThreadMaintenance
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

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.usefixtures("form")]

STEPS = ("one", "two", "three")


class Witness:
    """Counts how often each body ran, outside the database."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def body(self, name: str) -> str:
        self.ran[name] += 1
        return f"{name}!"

    def handler(self, ctx: api.Context, given: Any) -> list[str]:
        return [ctx.step(name, self.body, name) for name in STEPS]


@pytest.fixture
def witness(declare: Declare) -> Witness:
    made = Witness()
    declare("steps", made.handler)
    return made


def crash(points: Failpoints, name: str) -> None:
    """The pass of the thread dies at that failpoint."""
    points.crash_at(name)
    with pytest.raises(Crash):
        deliver("t")
    assert points.pending == [], f"{name} was not hit"


IN_A_PASS = [name for name in failpoints.ALL if name.startswith(("claim", "input", "step", "settle"))]
SPARED = {failpoints.STEP_AFTER: {"one": 1}, failpoints.STEP_BEFORE: {"one": 2}, failpoints.STEP_APPENDED: {"one": 2}}
"""How often the body of the step ran at which the crash came, if not once."""


@pytest.mark.parametrize("name", IN_A_PASS)
def test_after_a_crash_anywhere_in_an_attempt_the_next_one_finishes_from_the_last_record(
    witness: Witness, points: Failpoints, name: str
) -> None:
    first, second = api.submit("t", "steps", 1), api.submit("t", "steps", 2)

    crash(points, name)
    run_after_a_death()

    assert [settled(each).result for each in (first, second)] == [["one!", "two!", "three!"]] * 2
    assert witness.ran == Counter({step: 2 + (SPARED.get(name, {}).get(step, 1) - 1) for step in STEPS})
    assert settlements_in_log() == 2
    assert families()[:2] == ["thread-created", "user-input"]
    assert families().count("user-input") == 2
    ids = [record.record_id for record in log()]
    assert ids.index(f"settlement:{first.submission_id}") < ids.index(f"input:{second.submission_id}")
    sound()


@pytest.mark.parametrize("at", range(1, 4))
def test_161_no_recorded_step_runs_again_wherever_the_crash_comes(
    witness: Witness, points: Failpoints, at: int
) -> None:
    receipt = api.submit("t", "steps", None)
    hits: list[str] = []

    def crash_at_the_nth(thread_id: str) -> None:
        hits.append(thread_id)
        if len(hits) == at:
            raise Crash(thread_id)
        points.arm(failpoints.STEP_AFTER, crash_at_the_nth)

    points.arm(failpoints.STEP_AFTER, crash_at_the_nth)
    with pytest.raises(Crash):
        deliver("t")
    run_after_a_death()

    assert witness.ran == Counter(STEPS)
    assert settled(receipt).attempts == 2
    assert endings() == ["lost", "settled"]
    assert [record.payload["attempt"] for record in log() if record.family == "step-settled"] == [
        1 if place < at else 2 for place in range(3)
    ]


@pytest.mark.parametrize("name", [failpoints.END_BEFORE, failpoints.END_AFTER])
def test_a_crash_while_an_attempt_notes_its_yield_loses_nothing(
    declare: Declare, points: Failpoints, name: str
) -> None:
    def handler(ctx: api.Context, given: Any) -> int:
        if ctx.attempt == 1:
            drain.request()
        return int(ctx.step("one", lambda: 1))

    declare("yielding", handler)
    receipt = api.submit("t", "yielding", None)
    crash(points, name)
    drain.reset()
    run_after_a_death()
    assert settled(receipt).result == 1
    sound()


def test_many_crashes_in_a_row_settle_once(witness: Witness, points: Failpoints) -> None:
    receipt = api.submit("t", "steps", None)
    for name in IN_A_PASS:
        if api.settlement(receipt) is None:
            points.crash_at(name)
            with pytest.raises(Crash):
                deliver("t")
            travel(LEASE)
    run()
    assert settled(receipt).outcome == "completed"
    assert settlements_in_log() == 1
    sound()


def take_over() -> None:
    """The lease of the pass that runs expires, and another pass does the work of the thread to its end."""
    travel(LEASE)
    assert deliver("t").outcome is Outcome.RAN


def test_78_a_pass_that_lost_its_lease_can_record_no_step(declare: Declare) -> None:
    """L3: the zombie's step is computed and refused; the thread's history is that of the pass that took over."""
    entered: list[int] = []

    def handler(ctx: api.Context, given: Any) -> Any:
        entered.append(ctx.attempt)
        if ctx.attempt == 1:
            take_over()
        return ctx.step("one", lambda: f"by attempt {ctx.attempt}")

    declare("zombie", handler)
    receipt = api.submit("t", "zombie", None)

    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert entered == [1, 2]
    assert settled(receipt).result == "by attempt 2"
    assert families() == ["thread-created", "user-input", "step-settled", "submission-settled"]
    assert endings() == ["lost", "settled"]
    sound()


def test_a_pass_that_lost_its_lease_can_settle_nothing(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> Any:
        if ctx.attempt == 1:
            take_over()
        return ctx.attempt

    declare("zombie", handler)
    receipt = api.submit("t", "zombie", None)

    assert deliver("t").outcome is Outcome.LEASE_LOST
    assert settled(receipt).result == 2
    assert settlements_in_log() == 1
    sound()


def test_48_a_stale_lease_can_append_nothing_not_even_a_replay(declare: Declare) -> None:
    """The fence comes before the replay: what a zombie presents is never looked at."""
    refused: list[str] = []

    def handler(ctx: api.Context, given: Any) -> Any:
        attempt = ctx._attempt
        if ctx.attempt == 1:
            take_over()
            payload = StepSettled(run=attempt.run, name="one", attempt=2, output=Json("1"))
            batch = Batch(f"step:{attempt.run}:one", [NewRecord(f"step:{attempt.run}:one", payload)])
            try:
                with attempt.work.fenced():
                    attempt._append(batch)
            except OwnershipLost as lost:
                refused.append(lost.message)
            return None
        return ctx.step("one", lambda: 1)

    declare("zombie", handler)
    api.submit("t", "zombie", None)
    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert len(refused) == 1
    assert LogRecord.objects.filter(family="step-settled").count() == 1
    sound()


def test_an_epoch_grows_with_every_takeover_and_is_kept_with_the_batch(witness: Witness, points: Failpoints) -> None:
    api.submit("t", "steps", None)
    crash(points, failpoints.STEP_AFTER)
    run_after_a_death()

    epochs = [record.batch.epoch for record in LogRecord.objects.select_related("batch").order_by("sequence")]

    assert epochs == [0, 1, 1, 2, 2, 2]
    assert ThreadMaintenance.objects.get().lease_epoch == 2


def test_a_lost_attempt_leaves_the_submission_where_the_next_can_claim_it(witness: Witness, points: Failpoints) -> None:
    api.submit("t", "steps", None)
    crash(points, failpoints.CLAIM_AFTER)

    row = Submission.objects.get()
    assert (row.state, row.attempts, endings()) == ("input_applied", 1, [""])
    assert deliver("t").outcome is Outcome.BUSY
    travel(LEASE - timedelta(seconds=2))
    assert deliver("t").outcome is Outcome.BUSY
    travel(timedelta(seconds=2))
    run()
    assert Submission.objects.get().state == "settled"
