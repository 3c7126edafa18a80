"""The protocol machine over SQLite (plain statements) and PostgreSQL (fused ones), and the forms that it must break."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model import variants
from tests.model.ledger import JobLedger, JobRuntime
from tests.model.machine import ProtocolMachine
from tests.model.variants import GenerationSink, Variant

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("transactional_db")]

BOUNDED = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
"""The same examples in every run: a change of the code, not the day, makes it fail."""
HUNT = settings(BOUNDED, max_examples=2_000, phases=[Phase.generate])
"""Until the first example that fails; nobody will read it, so it is not made smaller."""
SOAK = settings(BOUNDED, max_examples=1_000, stateful_step_count=80, derandomize=False)

BROKEN: dict[str, tuple[Variant, dict[str, Callable[[], Any]]]] = {
    "acknowledging the current generation": (
        variants.acknowledging_the_current_generation,
        {"ledger": partial(JobLedger, trusts_states=True)},
    ),
    "neither token nor epoch": (variants.comparing_nothing, {}),
    "clearing without a scan": (variants.clearing_without_a_scan, {}),
    "a timer that does not bump": (variants.letting_timers_come_without_a_bump, {}),
    "a cursor that is a generation": (nullcontext, {"sink": GenerationSink}),
    "a blind suspension": (
        nullcontext,
        {
            "runtime": partial(JobRuntime, suspends_blindly=True),
            "ledger": partial(JobLedger, trusts_states=True),
        },
    ),
}


def test_u10_whatever_happens_the_invariants_hold_and_the_thread_comes_to_rest() -> None:
    run_state_machine_as_test(ProtocolMachine, settings=BOUNDED)


SLOW = {"a timer that does not bump", "a blind suspension"}
"""Told in `test_broken_forms` too; the machine needs more examples for them than every run can afford."""


@pytest.mark.parametrize(
    "broken", [pytest.param(name, marks=[pytest.mark.soak] if name in SLOW else []) for name in BROKEN]
)
def test_the_machine_finds(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    variant, ports = BROKEN[broken]
    monkeypatch.setattr(ProtocolMachine, "ports", ports)
    with variant(), pytest.raises(AssertionError):
        run_state_machine_as_test(ProtocolMachine, settings=HUNT)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_u10_a_long_run_of_other_examples_each_time() -> None:
    run_state_machine_as_test(ProtocolMachine, settings=SOAK)
