"""A settlement that finishes its pass in the same transaction, where nothing else has its turn between the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance.delivery import Outcome
from maintenance.errors import OwnershipLost
from maintenance.gate import mutation
from maintenance.models import OperatorAction, PassRun, ThreadMaintenance
from maintenance.ports import Residue, Work
from maintenance.testing import Crash
from tests.arrivals import arrive, raise_it
from tests.factories import make_row, numbers, row_of
from tests.marks import maintenance_database
from tests.statements import counted_statements

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.testing import Failpoints
    from tests.stubs import Stage

pytestmark = maintenance_database

LEFT = Residue(nonterminal=1, autonomous=True, claimable_head=True)


def write_down() -> None:
    """What a settlement writes: any row that its transaction may lose."""
    OperatorAction.objects.create(actor="test", action="settled", thread_id="t", reason="")


def written_down() -> int:
    return OperatorAction.objects.count()


def settle(work: Work) -> None:
    with work.settling():
        write_down()


@pytest.fixture
def settling(stage: Stage, sent: list[Hint]) -> Stage:
    """Return ports whose head settles one submission by `work.settling`."""
    stage.runtime.on_head, stage.runtime.settled = settle, 1
    return stage


@pytest.mark.postgres
@pytest.mark.usefixtures("settling")
def test_a_pass_that_settles_is_two_transactions() -> None:
    make_row(3, 2, 0, 0, seq=7)
    with counted_statements() as statements:
        arrive(7)
    assert statements.transactions == 2


@pytest.mark.usefixtures("settling")
def test_a_settlement_acknowledges_and_leaves_the_report_of_its_pass(frozen: FrozenClock) -> None:
    make_row(3, 2, 0, 0, seq=7)

    result = arrive(7)

    assert result.outcome is Outcome.RAN
    assert result.report is not None
    assert (result.report.settled, result.report.alarm) == (1, "cleared")
    assert numbers(frozen.at) == (3, 3, 0, None)
    assert row_of().lease_token is None
    assert PassRun.objects.get().settled == 1
    assert written_down() == 1


def test_a_crash_of_the_finish_takes_the_settlement_back(settling: Stage, points: Failpoints) -> None:
    make_row(3, 2, 0, 0, seq=7)
    points.crash_at("maintenance:finish:before")

    with pytest.raises(Crash):
        arrive(7)

    assert written_down() == 0
    assert row_of().is_dirty
    assert not PassRun.objects.exists()


def test_a_scan_that_fails_takes_the_settlement_back_and_fails_the_pass(settling: Stage) -> None:
    make_row(3, 2, 0, 0, seq=7)
    settling.ledger.on_scan = lambda: raise_it(RuntimeError("no"))

    assert arrive(7).outcome is Outcome.FAILED

    assert written_down() == 0
    assert row_of().is_dirty
    assert row_of().failures == 1


def test_the_scan_comes_after_the_block(settling: Stage) -> None:
    def settle_aloud(work: Work) -> None:
        with work.settling():
            settling.calls.append("settled")

    settling.runtime.on_head = settle_aloud
    make_row(3, 2, 0, 0, seq=7)

    arrive(7)

    assert settling.calls == ["recovery", "head", "settled", "scan"]


def test_a_block_that_has_read_what_is_left_spares_the_scan(settling: Stage, frozen: FrozenClock) -> None:
    def settle_and_look(work: Work) -> None:
        with work.settling() as tally:
            tally.residue = LEFT

    settling.runtime.on_head = settle_and_look
    make_row(3, 2, 0, 0, seq=7)

    arrive(7)

    assert settling.calls == ["recovery", "head"]
    assert numbers(frozen.at) == (3, 2, 1, 0)


def test_a_block_may_say_that_it_settled_nothing(settling: Stage) -> None:
    def settle_nothing(work: Work) -> None:
        with work.settling() as tally:
            tally.settled = 0

    settling.runtime.on_head = settle_nothing
    settling.ledger.residue = LEFT
    make_row(3, 2, 0, 0, seq=7)

    result = arrive(7)

    assert result.report is not None
    assert result.report.settled == 0
    assert row_of().stalls == 1


def test_a_sink_is_drained_between_settlement_and_finish(settling: Stage) -> None:
    """A settlement that is published in the same pass does not cost a second one."""
    settling.sink.inert = False
    settled_when_drained: list[tuple[int, bool]] = []
    settling.sink.on_drain = lambda: settled_when_drained.append((written_down(), row_of().lease_token is not None))
    make_row(3, 2, 0, 0, seq=7)

    arrive(7)

    assert settled_when_drained == [(0, True), (1, True)]
    assert not row_of().is_dirty


def test_a_zombie_settles_nothing(settling: Stage) -> None:
    def be_taken_over(work: Work) -> None:
        ThreadMaintenance.objects.filter(pk="t").update(lease_epoch=99)
        settle(work)

    settling.runtime.on_head = be_taken_over
    make_row(3, 2, 0, 0, seq=7)

    assert arrive(7).outcome is Outcome.LEASE_LOST

    assert written_down() == 0
    assert row_of().lease_epoch == 99
    assert row_of().is_dirty


def test_an_attempt_that_writes_after_its_settlement_has_lost_the_thread(settling: Stage) -> None:
    refused: list[OwnershipLost] = []

    def settle_and_write_on(work: Work) -> None:
        settle(work)
        with pytest.raises(OwnershipLost) as lost, work.fenced():
            write_down()
        refused.append(lost.value)

    settling.runtime.on_head = settle_and_write_on
    make_row(3, 2, 0, 0, seq=7)

    arrive(7)

    assert len(refused) == 1
    assert written_down() == 1


def test_a_mutation_after_the_settlement_is_not_acknowledged_with_it(settling: Stage) -> None:
    def settle_and_be_asked(work: Work) -> None:
        settle(work)
        with mutation("t"):
            pass

    settling.runtime.on_head = settle_and_be_asked
    make_row(3, 2, 0, 0, seq=7)

    arrive(7)

    assert (row_of().processed, row_of().dirty) == (3, 4)
    assert row_of().alarm_at is not None
