"""Every ordered pair of operations, at every gap between the statements of the first, on two connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.matrix import FURTHER_MEETINGS, PLAIN_MEETINGS, REQUIRED_MEETINGS, broken_schedules

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.model.schedule import Stage

pytestmark = [pytest.mark.postgres, pytest.mark.model, pytest.mark.usefixtures("transactional_db")]


@pytest.mark.parametrize(("world", "x", "y"), REQUIRED_MEETINGS)
def test_no_gap_of_one_operation_lets_another_break_an_invariant(actors: Stage, world: str, x: str, y: str) -> None:
    assert list(broken_schedules(actors, world, x, y)) == []


@pytest.mark.parametrize(("world", "x", "y"), FURTHER_MEETINGS)
def test_nor_does_a_gap_of_the_further_operations(actors: Stage, world: str, x: str, y: str) -> None:
    assert list(broken_schedules(actors, world, x, y)) == []


@pytest.mark.parametrize(("world", "x", "y"), PLAIN_MEETINGS)
def test_nor_with_the_plain_statements(actors: Stage, settings: Settings, world: str, x: str, y: str) -> None:
    settings.MAINTENANCE = {"FUSED": False}
    assert list(broken_schedules(actors, world, x, y)) == []
