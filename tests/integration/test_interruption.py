"""Time limits and interruption: never swallowed, never taken for success (scenarios K-03 to K-07)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connection

from maintenance.delivery import Outcome
from maintenance.errors import PassInterrupted
from maintenance.models import PassRun
from maintenance.ports import Residue, Work
from maintenance.testing import deliver, fixed_jitter
from tests.arrivals import raise_it
from tests.factories import make_row, numbers, row_of

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db


# --- Time limits --------------------------------------------------------------------------------


def never_return(work: Work) -> None:
    """A head that looks at its limits and goes on until one of them stops it."""
    while True:
        work.checkpoint()


def hit_celerys_limit(_: Work) -> None:
    raise SoftTimeLimitExceeded


@pytest.mark.parametrize("head", [never_return, hit_celerys_limit])
def test_k03_the_deadline_of_a_pass_gives_its_thread_back_and_settles_nothing(
    stage: Stage, frozen: FrozenClock, settings: Settings, head: Callable[[Work], None]
) -> None:
    settings.MAINTENANCE = {"SOFT_YIELD_MS": 10, "PASS_DEADLINE_MS": 40}
    stage.runtime.on_head = head
    make_row(5, 4, 1, 0)

    with fixed_jitter(0):
        result = deliver("t")

    assert (result.outcome, result.failed) == (Outcome.INTERRUPTED, True)
    assert result.error.startswith("maintenance pass deadline")
    assert numbers(frozen.at) == (5, 4, 1, 500)
    assert (row_of().lease_token, row_of().failures) == (None, 1)
    assert PassRun.objects.get().settled == 0
    assert "scan" not in stage.calls


def test_k04_a_head_that_is_asked_to_yield_ends_its_pass_well(
    stage: Stage, frozen: FrozenClock, settings: Settings
) -> None:
    """Asked, not interrupted (K-05): the head chooses its boundary, and no checkpoint raises meanwhile."""
    settings.MAINTENANCE = {"SOFT_YIELD_MS": 20}

    def work_until_asked(work: Work) -> None:
        while not work.should_yield():
            work.checkpoint()
        work.checkpoint()

    stage.runtime.on_head = work_until_asked
    stage.ledger.residue = Residue(nonterminal=1, autonomous=True)
    make_row(5, 4, 1, 0)

    result = deliver("t")

    assert result.outcome is Outcome.RAN
    assert result.report is not None
    assert (result.report.settled, result.report.alarm) == (0, "rearmed")
    assert row_of().processed == 4


# --- Interruption -------------------------------------------------------------------------------


def on(port: str, attribute: str) -> Callable[[Stage, BaseException], None]:
    """Lets one member of one port be interrupted."""

    def script(stage: Stage, interruption: BaseException) -> None:
        getattr(stage, port).inert = False
        setattr(getattr(stage, port), attribute, lambda *_: raise_it(interruption))

    script.__name__ = f"{port}.{attribute}"
    return script


def at_finish(port: str) -> Callable[[Stage, BaseException], None]:
    """Lets the deadline of a port be interrupted in the finish transaction."""

    def script(stage: Stage, interruption: BaseException) -> None:
        getattr(stage, port).inert = False
        getattr(stage, port).on_deadline = lambda: raise_it(interruption) if "scan" in stage.calls else None

    script.__name__ = f"{port} at finish"
    return script


PLACES = [
    on("projection", "on_drain"),
    on("sink", "on_drain"),
    on("sink", "on_deadline"),
    on("runtime", "on_recovery"),
    on("runtime", "on_head"),
    on("ledger", "on_scan"),
    at_finish("projection"),
    at_finish("sink"),
    at_finish("messages"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("kind", [SoftTimeLimitExceeded, KeyboardInterrupt, SystemExit, PassInterrupted])
def test_k07_an_interruption_is_never_taken_for_success_or_swallowed(
    stage: Stage, frozen: FrozenClock, place: Callable[[Stage, BaseException], None], kind: type[BaseException]
) -> None:
    place(stage, PassInterrupted("the worker drains") if kind is PassInterrupted else kind())
    make_row(5, 4, 1, 0)

    if kind in {KeyboardInterrupt, SystemExit}:
        with pytest.raises(kind):
            deliver("t")
    else:
        assert deliver("t").outcome is Outcome.INTERRUPTED

    row = row_of()
    assert (row.processed, row.lease_token) == (4, None)
    assert row.alarm_at is not None
    assert PassRun.objects.get().outcome == "interrupted"


@pytest.mark.parametrize("kind", [SoftTimeLimitExceeded, KeyboardInterrupt, SystemExit])
def test_k07_an_interruption_of_the_inline_wave_reaches_the_process(
    stage: Stage, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    monkeypatch.setattr(connection, "vendor", "sqlite")
    stage.messages.inert = False
    stage.messages.deadline = frozen.at
    stage.messages.on_drain = lambda _: raise_it(kind())
    make_row(5, 4, 1, 0)

    if kind is SoftTimeLimitExceeded:
        assert deliver("t").outcome is Outcome.INTERRUPTED
    else:
        with pytest.raises(kind):
            deliver("t")

    assert (row_of().processed, row_of().lease_token) == (4, None)


def test_a_drained_pass_comes_back_at_once_and_counts_as_no_failure(stage: Stage, frozen: FrozenClock) -> None:
    stage.runtime.on_head = lambda _: raise_it(PassInterrupted("the worker drains"))
    make_row(5, 4, 1, 0, failures=3)

    result = deliver("t")

    assert (result.outcome, result.failed) == (Outcome.INTERRUPTED, False)
    assert numbers(frozen.at) == (5, 4, 1, 50)
    assert row_of().failures == 3
