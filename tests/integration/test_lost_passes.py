"""The history names every pass that lost its lease, whatever comes of the delivery that finds it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from maintenance.delivery import Outcome
from maintenance.models import PassRun
from maintenance.testing import deliver
from tests.factories import make_row
from tests.marks import maintenance_database

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock

pytestmark = [maintenance_database, pytest.mark.usefixtures("sent", "stage")]


@pytest.mark.parametrize(
    ("starts", "outcome", "ends"),
    [(1, Outcome.RAN, ["lease_lost", "ran"]), (20, Outcome.QUARANTINED, ["lease_lost"])],
)
def test_a_pass_that_lost_its_lease_is_in_the_history(
    frozen: FrozenClock, starts: int, outcome: Outcome, ends: list[str]
) -> None:
    """Also the last one, after which the thread goes into quarantine."""
    make_row(
        5,
        4,
        slot_ms=0,
        lease_token=uuid4(),
        lease_epoch=starts,
        lease_started_at=frozen.at - timedelta(minutes=1),
        lease_expires_at=frozen.at,
        starts_since_finish=starts,
    )
    assert deliver("t").outcome is outcome
    assert [run.outcome for run in PassRun.objects.order_by("pk")] == ends
