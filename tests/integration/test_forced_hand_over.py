"""A forced pass may swallow the message of a slot that still lay ahead; then the slot is handed over again."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from maintenance import begin, finish, passes
from maintenance.delivery import Begun, Delivery, Outcome
from maintenance.finish import Done
from maintenance.gate import mutation
from tests.factories import MS, make_row, row_of
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint

pytestmark = [maintenance_database, pytest.mark.usefixtures("stage")]


def test_the_end_of_a_forced_pass_hands_over_the_slot_whose_message_it_swallowed(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    """The lease hid a due slot and is released: the effective due time has changed, although the slot has not."""
    make_row(5, 4, slot_ms=40, seq=7, hint_seq=7, hint_at=frozen.at, hint_attempts=1)
    begun = begin.begin(Delivery(thread_id="t", forced=True), uuid4())
    assert isinstance(begun, Begun)

    frozen.at += 45 * MS
    assert passes.deliver(Delivery(thread_id="t", seq=7)).outcome is Outcome.BUSY
    with mutation("t"):
        pass
    assert sent == []

    finish.finish(begun, Done(ran=True), in_place=False)
    assert [hint.seq for hint in sent] == [row_of().alarm_seq]
