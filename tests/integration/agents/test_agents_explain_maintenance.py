"""`explain`: what the thread's maintenance adds to the sentence (ledger-recovery, k; R-01)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from agents import api, registry
from maintenance import clock
from maintenance import operations as maintenance
from maintenance.models import ThreadMaintenance
from maintenance.testing import Crash, deliver
from tests.agents_kit import agents_database, run, run_after_a_death
from tests.explain_kit import sentence, submit, waiting_for_approval
from tests.factories import live_lease

if TYPE_CHECKING:
    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


@pytest.fixture
def ready(echo: str) -> api.Receipt:
    """A submission that a worker could begin."""
    return api.submit("t", echo, 1)


def test_a_pause_says_by_whom_and_why(ready: api.Receipt) -> None:
    maintenance.pause("t", actor="ann", reason="the supplier is down")
    assert sentence(ready) == "Paused by ann: the supplier is down"


def test_a_wait_on_a_paused_thread_says_both(declare: Declare) -> None:
    receipt = waiting_for_approval(declare)
    maintenance.pause("t", actor="ann", reason="night")
    said = sentence(receipt)
    assert said.startswith("Waits for approval of refund(")
    assert said.endswith("; besides, paused by ann: night")


def test_a_pause_that_nobody_signed_is_told_as_such(ready: api.Receipt) -> None:
    ThreadMaintenance.objects.update(paused_at=clock.now())
    assert sentence(ready) == "Paused by an operator"


def test_a_quarantine_says_who_has_to_act(ready: api.Receipt) -> None:
    ThreadMaintenance.objects.update(quarantined_at=clock.now(), quarantine_reason="20 passes did not end")
    assert sentence(ready) == "In quarantine (20 passes did not end) until a person releases it"


def test_an_alarm_that_no_worker_took_says_so_with_its_queue(ready: api.Receipt) -> None:
    late = clock.now() - timedelta(seconds=35)
    ThreadMaintenance.objects.update(alarm_at=late)
    assert sentence(ready) == (
        "The alarm was due 35 s ago and no worker took it (queue 'maintenance'; handed over 1 time)"
    )


def test_an_alarm_that_was_never_handed_over_says_why_that_may_be(ready: api.Receipt) -> None:
    ThreadMaintenance.objects.update(alarm_at=clock.now() - timedelta(seconds=35), hint_seq=None)
    assert "not handed over: no sweep runs, or the broker does not take messages" in sentence(ready)


def test_failed_passes_say_how_many_when_the_next_one_is_and_what_was_wrong(ready: api.Receipt) -> None:
    at = clock.now() + timedelta(seconds=40)
    ThreadMaintenance.objects.update(alarm_at=at, failures=3, last_error="no agent named 'x' is declared")
    said = sentence(ready)
    assert said.startswith(f"The next pass is due at {timezone.localtime(at):%H:%M:%S} (in ")
    assert said.endswith(", after 3 failed passes in a row: no agent named 'x' is declared")


def test_an_agent_that_is_gone_from_the_code_is_named(ready: api.Receipt) -> None:
    registry.unregister("echo")
    run()
    said = sentence(ready)
    assert said.startswith("The next pass is due at ")
    assert "after 1 failed pass in a row: binding missing in this worker: no agent named 'echo' is declared" in said


def test_a_pass_that_holds_the_thread_is_told(ready: api.Receipt) -> None:
    ThreadMaintenance.objects.update(**live_lease())
    assert sentence(ready) == "A pass holds the thread for 0 s and comes to it"


def test_work_without_an_alarm_says_what_to_do(ready: api.Receipt) -> None:
    ThreadMaintenance.objects.update(processed=2, alarm_at=None)
    assert sentence(ready) == "No alarm is armed although there is work: run `maintenance ensure` on the thread"


def test_a_thread_that_maintenance_does_not_know_says_what_to_do(ready: api.Receipt) -> None:
    ThreadMaintenance.objects.all().delete()
    assert "run `maintenance ensure` on the thread" in sentence(ready)


def test_a_dead_pass_is_waited_for_and_told(declare: Declare, points: Failpoints) -> None:
    receipt = submit(declare, lambda ctx, _: ctx.step("heavy", lambda: 1))
    points.crash_at("step:before-append")
    with pytest.raises(Crash):
        deliver("t")
    assert sentence(receipt).startswith("Runs: attempt 1"), "its lease lives, so nobody knows better"
    run_after_a_death()
    assert sentence(receipt).startswith("Settled as completed")
