"""A sweep reaches every slot that wants its hint, whatever stands before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance.sweep import sweep
from tests.factories import MS, make_row
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint

pytestmark = [maintenance_database, pytest.mark.usefixtures("frozen", "sent")]


def test_slots_in_their_doubled_grace_hide_no_later_one(frozen: FrozenClock, sent: list[Hint]) -> None:
    """After an outage many threads are long due and were handed over often: a new one must not wait for them."""
    six_seconds_ago = frozen.at - 6_000 * MS
    for number in range(5):
        make_row(5, 4, 0, -60_000, thread_id=f"overdue-{number}", hint_seq=1, hint_at=six_seconds_ago, hint_attempts=5)
    make_row(5, 4, 0, -10, thread_id="new")
    assert sweep(limit=1) == 1
    assert [hint.thread_id for hint in sent] == ["new"]
