"""Every outcome of a delivery is counted, and no number names a thread (S-04, S-05, L-11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from maintenance import tasks
from maintenance.delivery import Outcome
from maintenance.errors import PassFailed, PassInterrupted, ThreadParked
from maintenance.gate import prearmed_mutation
from maintenance.models import ThreadMaintenance
from maintenance.testing import deliver
from tests.arrivals import arrive, lease_of_another, raise_it
from tests.factories import make_row

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.ports import Work
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db


# --- Counters -----------------------------------------------------------------------------------


def count_of(outcome: Outcome) -> float:
    """How many deliveries of this process came to that."""
    return REGISTRY.get_sample_value("wakeful_deliveries_total", {"outcome": str(outcome)}) or 0.0


def dirty_and_due(stage: Stage) -> None:
    make_row(4, 3, 0, 0)


def failing(stage: Stage) -> None:
    stage.runtime.on_head = lambda _: raise_it(ValueError())
    make_row(4, 3, 0, 0)


def interrupted(stage: Stage) -> None:
    stage.runtime.on_head = lambda _: raise_it(PassInterrupted("cancelled"))
    make_row(4, 3, 0, 0)


def taken_over(stage: Stage) -> None:
    def lose(_: Work) -> None:
        ThreadMaintenance.objects.update(lease_epoch=99)

    stage.runtime.on_head = lose
    make_row(4, 3, 0, 0)


def superseded(stage: Stage) -> None:
    make_row(4, 3, 0, 0, 2)


def cleared(stage: Stage) -> None:
    make_row(4, 4)


def early(stage: Stage) -> None:
    make_row(4, 3, 0, 5_000)


def busy(stage: Stage) -> None:
    make_row(4, 3, 0, 0, **lease_of_another())


def paused(stage: Stage) -> None:
    made = make_row(4, 3, 0, 0)
    ThreadMaintenance.objects.update(paused_at=made.alarm_at)


def begun_too_often(stage: Stage) -> None:
    make_row(4, 3, 0, 0, starts_since_finish=20)


def parked(stage: Stage) -> None:
    stage.runtime.on_head = lambda _: raise_it(ThreadParked("the balance is exhausted"))
    make_row(4, 3, 0, 0)


def unknown(stage: Stage) -> None:
    """Nothing is there."""


SCENES: dict[Outcome, Callable[[Stage], None]] = {
    Outcome.RAN: dirty_and_due,
    Outcome.FAILED: failing,
    Outcome.INTERRUPTED: interrupted,
    Outcome.LEASE_LOST: taken_over,
    Outcome.SUPERSEDED: superseded,
    Outcome.CLEARED: cleared,
    Outcome.EARLY: early,
    Outcome.BUSY: busy,
    Outcome.PAUSED: paused,
    Outcome.QUARANTINED: begun_too_often,
    Outcome.PARKED: parked,
    Outcome.UNKNOWN_THREAD: unknown,
}


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.MALFORMED])
def test_s04_every_outcome_is_counted_once(stage: Stage, frozen: FrozenClock, outcome: Outcome) -> None:
    SCENES[outcome](stage)
    counted = {each: count_of(each) for each in Outcome}

    assert arrive(1).outcome is outcome

    assert {each: count_of(each) - before for each, before in counted.items() if count_of(each) != before} == {
        outcome: 1
    }


def test_s04_a_malformed_message_is_counted_once() -> None:
    counted = count_of(Outcome.MALFORMED)

    tasks.run_pass("t")

    assert count_of(Outcome.MALFORMED) == counted + 1


def test_s05_no_sample_names_a_thread(stage: Stage, frozen: FrozenClock) -> None:
    thread_id = "the-thread-of-customer-4242"
    make_row(4, 3, 0, 0, thread_id=thread_id)
    deliver(thread_id)
    with prearmed_mutation(thread_id, "call-4242"):
        pass

    samples = [sample for family in REGISTRY.collect() for sample in family.samples]
    assert [sample for sample in samples if any("4242" in value for value in sample.labels.values())] == []


def test_a_failed_pass_fails_its_task_with_a_safe_text(stage: Stage, frozen: FrozenClock) -> None:
    stage.runtime.on_head = lambda _: raise_it(ValueError("sk-live-4242"))
    make_row(4, 3, 0, 0)

    with pytest.raises(PassFailed) as caught:
        tasks.run_pass("t", 1)

    assert "ValueError" in str(caught.value)
    assert "4242" not in str(caught.value)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
