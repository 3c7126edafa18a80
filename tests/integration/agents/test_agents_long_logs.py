"""Ten thousand records: what has settled is never read again, and what is read is read in pages (the design, 4.5)."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from agents import api, failpoints
from agents.conf import get_settings
from agents.recovery import evidence
from maintenance.testing import deliver
from tests.agents_kit import agents_database, run, run_after_a_death, settled, sound
from tests.long_logs import record_steps, watched_reading
from tests.tools_kit import crash

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database

AMOUNT = 10_000
NAMES = [f"step {number:06} {'x' * 180}" for number in range(AMOUNT)]
"""Long, so that the ids of all of them weigh megabytes."""


@pytest.fixture
def lost(declare: Declare, points: Failpoints) -> api.Receipt:
    """Return a submission whose attempt died with all these steps recorded; the next one comes by none of them."""
    declare("brief", lambda ctx, given: ctx.step("last", lambda: given))
    return lose("brief", points)


def lose(agent: str, points: Failpoints) -> api.Receipt:
    receipt = api.submit("t", agent, AMOUNT)
    crash(points, failpoints.CLAIM_AFTER)
    record_steps(receipt.submission_id, NAMES)
    return receipt


@pytest.fixture
def grown(lost: api.Receipt) -> str:
    """Return a thread whose log has grown long, with everything settled."""
    run_after_a_death()
    assert settled(lost).result == AMOUNT
    return "t"


@pytest.mark.usefixtures("form")
def test_a_pass_reads_nothing_of_what_has_settled(grown: str) -> None:
    receipt = api.submit(grown, "brief", 1)
    with watched_reading() as reading:
        run()
    assert settled(receipt).result == 1
    assert sum(reading.pages) == 0


@pytest.mark.usefixtures("form")
def test_recovery_reads_only_what_came_after_the_last_settlement(grown: str, points: Failpoints) -> None:
    receipt = api.submit(grown, "brief", 1)
    crash(points, failpoints.STEP_AFTER)
    with watched_reading() as reading:
        run_after_a_death()
    assert settled(receipt).attempts == 2
    # The ids of its input and its one step for recovery; the step's id, then its text, for the attempt.
    assert sum(reading.pages) == 4


def test_a_forced_pass_over_a_long_log_that_owes_nothing_does_not_look_at_it(grown: str) -> None:
    with watched_reading() as reading:
        deliver(grown, forced=True)
    assert reading.pages == []


def test_recovery_of_a_long_run_holds_one_page_of_it(lost: api.Receipt) -> None:
    evidence.gather("t")
    tracemalloc.start()
    try:
        (facts,) = evidence.gather("t")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert facts.last_progress == AMOUNT + 2
    assert peak < sum(map(len, NAMES)) / 2


def test_a_long_run_is_recovered_and_replayed_page_by_page(declare: Declare, points: Failpoints) -> None:
    ran: list[str] = []

    def replaying(ctx: api.Context, given: int) -> int:
        return sum(bool(ctx.step(name, ran.append, name)) for name in NAMES)

    declare("long", replaying)
    receipt = lose("long", points)
    with watched_reading() as reading:
        run_after_a_death()
    assert settled(receipt).result == AMOUNT
    assert ran == []
    settings = get_settings()
    ids, texts = settings.max_log_page, settings.log_page
    assert reading.pages.count(ids) == 2 * (AMOUNT // ids), "once for recovery, once for the attempt"
    assert reading.pages.count(texts) == AMOUNT // texts
    assert max(reading.pages) == ids
    sound()
