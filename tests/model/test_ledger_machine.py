"""The ledger machine over SQLite (plain statements) and PostgreSQL (fused ones), and the forms that it must break."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

from agents import calling, calls, tools
from agents.models import ToolKind
from maintenance import lease
from tests.model.ledger_hands import empty_tables
from tests.model.ledger_machine import LedgerMachine

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_django import Settings

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("transactional_db", "agents_tables")]

BOUNDED = hypothesis_settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""The same examples in every run: a change of the code, not the day, makes it fail."""


@pytest.fixture
def agents_tables(settings: Settings) -> Iterator[None]:
    """Leave nothing of the agents to the next test; let few deaths use up a submission's attempts."""
    settings.AGENTS = {"RETRY_BUDGET": 3}
    empty_tables()
    yield
    empty_tables()


def test_whatever_happens_each_submission_is_settled_once_in_order_and_no_effect_is_repeated() -> None:
    run_state_machine_as_test(LedgerMachine, settings=BOUNDED)


@contextmanager
def without_a_fence() -> Iterator[None]:
    """Neither token nor epoch is compared: who once held the thread may write."""
    with (
        mock.patch.object(lease, "_prove", return_value=True),
        mock.patch.object(lease, "is_held", return_value=True),
    ):
        yield


@contextmanager
def running_open_calls_again() -> Iterator[None]:
    """Every tool is taken for one that may be repeated."""
    every = frozenset(ToolKind.values)
    with mock.patch.object(tools, "RERUNNABLE", every), mock.patch.object(calling, "RERUNNABLE", every):  # noqa: SIM117
        with mock.patch.object(calls, "RERUNNABLE", every):
            yield


class Charging(LedgerMachine):
    """Calls ordinary tools and hardly anything else."""

    verbs = ["charge"]


@pytest.mark.parametrize(
    ("broken", "machine", "said"),
    [
        (without_a_fence, LedgerMachine, "a pass that had lost its thread wrote"),
        (running_open_calls_again, Charging, "L5: an ordinary tool ran twice"),
    ],
    ids=["no fence", "open calls run again"],
)
def test_a_broken_form_is_caught(
    broken: Callable[[], AbstractContextManager[None]], machine: type[LedgerMachine], said: str
) -> None:
    with broken(), pytest.raises(AssertionError, match=said):
        run_state_machine_as_test(machine, settings=BOUNDED)
