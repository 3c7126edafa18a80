"""The atomic mutation (alarm-host, 5 and 15.10; scenarios C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance.gate import mutation
from tests.factories import make_row, numbers

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint

pytestmark = pytest.mark.django_db(transaction=True)


def test_c01_the_generation_and_the_slot_are_there_while_the_body_runs(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3)
    with mutation("t"):
        assert numbers(frozen.at) == (4, 3, 0, 0)
    assert [hint.seq for hint in sent] == [2]


def test_c01_without_a_wake_the_slot_is_the_least_delay_away(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(3, 3)
    with mutation("t", wake=False):
        pass
    assert numbers(frozen.at) == (4, 3, 0, 50)
