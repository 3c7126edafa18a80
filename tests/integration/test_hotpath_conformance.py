"""The fused statements and the plain ORM version are one rule: from every state the same rows, history and hints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.db import transaction
from django.test import override_settings

from maintenance import alarm, hooks, hotpath, passes
from maintenance.delivery import Delivery
from maintenance.ensure import ensure_alarm
from maintenance.errors import WakefulError
from maintenance.gate import mutation, prearmed_mutation
from maintenance.lease import Lease, fenced
from maintenance.models import MutationLease, PassRun, ThreadMaintenance
from maintenance.rows import lock_or_create
from maintenance.sweep import sweep
from maintenance.testing import fixed_jitter, recorded_hints
from tests.factories import MS, live_lease, make_row, row_of
from tests.marks import maintenance_database
from tests.passes import CLAIMABLE, GOING_ON
from tests.stubs import Broken, Stage, be_interrupted, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from maintenance.clock import FrozenClock
    from maintenance.ports import Work

    Operation = Callable[[str], Any]
    Script = Callable[[Stage], None]

pytestmark = [pytest.mark.postgres, maintenance_database]

NEW = "no row yet"
MAX_BIGINT = 2**63 - 1
STRANGER = UUID(int=1)


def states(now: datetime) -> dict[str, dict[str, Any]]:
    """Rows by name, as arguments of `make_row`. Slot sequence 7; handed over 100 ms ago unless it says otherwise."""

    def caught_up(slot_ms: float | None, **columns: Any) -> dict[str, Any]:
        return {"dirty": 4, "processed": 4, "slot_ms": slot_ms, "seq": 7, "nonterminal": 1, **columns}

    def dirty(slot_ms: float, **columns: Any) -> dict[str, Any]:
        return {"dirty": 5, "processed": 4, "slot_ms": slot_ms, "seq": 7, **handed_over(), **columns}

    def handed_over(seq: int | None = 7, ms: float = -100, attempts: int = 1) -> dict[str, Any]:
        return {"hint_seq": seq, "hint_at": at(ms), "hint_attempts": attempts}

    def at(ms: float) -> datetime:
        return now + ms * MS

    return {
        "quiet": caught_up(None),
        "caught up and due": caught_up(0),
        "caught up and ahead": caught_up(400, **handed_over()),
        "caught up with a timer": caught_up(0, timer_at=at(5000)),
        "a timer has come": caught_up(0, timer_at=at(-5)),
        "due, and a timer has come": dirty(-10, timer_at=at(-5)),
        "due": dirty(-10),
        "due, the hand-over forgotten": dirty(-10, hint_seq=None),
        "due, another slot handed over": dirty(-10, hint_seq=6),
        "due, never handed over": dirty(-10, hint_seq=None, hint_at=None, hint_attempts=0),
        "due, handed over with an eta": dirty(-1000, **handed_over(ms=-2000)),
        "due so long that its hint is stale": dirty(-20_000, **handed_over(ms=-10_000, attempts=2)),
        "due so long, in its doubled grace": dirty(-20_000, **handed_over(ms=-9_999, attempts=2)),
        "ahead": dirty(5000),
        "ahead within the tolerance": dirty(15),
        "beyond the horizon": dirty(90_000, hint_seq=None, hint_at=None),
        "held": dirty(50, **live_lease()),
        "held and due": dirty(-50, **live_lease()),
        "held until now": dirty(50, **live_lease(0)),
        "held no longer": dirty(-50, **live_lease(-10)),
        "paused": dirty(-50, hint_seq=None, paused_at=at(-1000)),
        "in quarantine": dirty(-50, hint_seq=None, quarantined_at=at(-1000)),
        "begun too often": dirty(-50, starts_since_finish=20),
        "a mutation in flight": dirty(-50, mutating_until=at(60_000)),
        "stalled and failed before": dirty(
            -50, stalls=3, failures=2, last_report={"phase": "actionable"}, last_error="recovery failed"
        ),
        "of another schema": dirty(-50, schema_version=2),
        "at the last generation": dirty(-50) | {"dirty": MAX_BIGINT},
    }


def mutate(thread_id: str, **how: bool) -> Any:
    with mutation(thread_id, **how) as begun:
        return begun


def mutate_and_roll_back(thread_id: str) -> None:
    with mutation(thread_id):
        fail()


def charge(thread_id: str) -> Any:
    with prearmed_mutation(thread_id, "charge") as begun:
        leases = MutationLease.objects.filter(thread_id=thread_id).values()
        return begun, [shown(lease) for lease in leases], stored_rows()[thread_id]


def deliver(thread_id: str, **how: Any) -> Any:
    return passes.deliver(Delivery(thread_id=thread_id, **{"seq": 7, **how}))


def deliver_and_go_on(thread_id: str) -> Any:
    first = passes.deliver(Delivery(thread_id=thread_id, seq=7), may_go_on=lambda: True)
    second = None if first.next is None else passes.go_on(first.next)
    return first.outcome, first.report, second


def write_fenced(thread_id: str, **how: bool) -> Any:
    """By the lease that the row names, or by one that it does not."""
    row = row_of(thread_id)
    lease = Lease(thread_id, row.lease_token or STRANGER, row.lease_epoch)
    with fenced(lease, **how):
        pass
    return lease.progressed


def settle_one_of_two(stage: Stage) -> None:
    stage.runtime.settled, stage.ledger.residue = 1, CLAIMABLE


def make_no_progress(stage: Stage) -> None:
    stage.ledger.residue = GOING_ON


def progress_and_fail(stage: Stage) -> None:
    def head(work: Work) -> None:
        with work.fenced(progress=True):
            pass
        fail()

    stage.runtime.on_head = head


def be_told_to_stop(stage: Stage) -> None:
    stage.runtime.on_head = be_interrupted


def script_nothing(stage: Stage) -> None:
    """Ports without work of their own."""


@pytest.mark.parametrize(
    ("operation", "script"),
    [
        pytest.param(mutate, script_nothing, id="mutation"),
        pytest.param(lambda t: mutate(t, wake=False), script_nothing, id="mutation-without-a-wake"),
        pytest.param(mutate_and_roll_back, script_nothing, id="mutation-rolled-back"),
        pytest.param(charge, script_nothing, id="prearmed-mutation"),
        pytest.param(ensure_alarm, script_nothing, id="ensure"),
        pytest.param(alarm.schedule_now, script_nothing, id="wake"),
        pytest.param(deliver, script_nothing, id="pass"),
        pytest.param(lambda t: deliver(t, seq=6), script_nothing, id="superseded-delivery"),
        pytest.param(lambda t: deliver(t, seq=None, forced=True), script_nothing, id="forced-pass"),
        pytest.param(deliver, settle_one_of_two, id="pass-that-settles"),
        pytest.param(deliver_and_go_on, settle_one_of_two, id="pass-that-goes-on-in-place"),
        pytest.param(deliver, make_no_progress, id="pass-without-progress"),
        pytest.param(deliver, progress_and_fail, id="pass-that-fails-after-progress"),
        pytest.param(deliver, be_told_to_stop, id="interrupted-pass"),
        pytest.param(write_fenced, script_nothing, id="fenced-write"),
        pytest.param(lambda t: write_fenced(t, progress=True), script_nothing, id="fenced-progress"),
        pytest.param(lambda t: write_fenced(t, bump=True), script_nothing, id="fenced-bump"),
        pytest.param(lambda t: sweep(), script_nothing, id="sweep"),  # noqa: ARG005
    ],
)
def test_fused_and_plain_come_to_the_same(frozen: FrozenClock, operation: Operation, script: Script) -> None:
    assert what_comes_of(operation, script, frozen.at, fused=True) == what_comes_of(
        operation, script, frozen.at, fused=False
    )


def what_comes_of(operation: Operation, script: Script, now: datetime, *, fused: bool) -> dict[str, Any]:
    """Runs the operation once on a thread in each state; by thread the answer, the row, the history and the hints."""
    ThreadMaintenance.objects.all().delete()
    PassRun.objects.all().delete()
    MutationLease.objects.all().delete()
    prepared = states(now)
    for name, columns in prepared.items():
        make_row(**columns, thread_id=name)
    stage = Stage()
    stage.ledger.known = frozenset({NEW})
    script(stage)
    with (
        override_settings(MAINTENANCE={"FUSED": fused}),
        hooks.installed(stage.hooks),
        recorded_hints() as hints,
        fixed_jitter(0.5),
    ):
        assert hotpath.serves() is fused
        answers = {name: answer_of(operation, name) for name in [*prepared, NEW]}
    rows, history = stored_rows(), [shown(run, "id") for run in PassRun.objects.order_by("id").values()]
    return {
        name: (
            answers[name],
            rows.get(name),
            [run for run in history if run["thread_id"] == name],
            [hint for hint in hints if hint.thread_id == name],
        )
        for name in answers
    }


def answer_of(operation: Operation, thread_id: str) -> Any:
    try:
        return operation(thread_id)
    except (WakefulError, Broken, ThreadMaintenance.DoesNotExist) as error:
        return type(error), getattr(error, "operation", None)


def stored_rows() -> dict[str, dict[str, Any]]:
    return {row["thread_id"]: shown(row) for row in ThreadMaintenance.objects.values()}


def shown(row: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    """A row without what differs from run to run: its random tokens, of which only the presence counts."""
    kept = {name: value for name, value in row.items() if name not in left_out}
    return kept | {name: value is not None for name, value in kept.items() if name in {"token", "lease_token"}}


def test_a_locked_row_reads_the_same(frozen: FrozenClock) -> None:
    seen = []
    for name, columns in states(frozen.at).items():
        make_row(**columns, thread_id=name)
    for fused in (True, False):
        with override_settings(MAINTENANCE={"FUSED": fused}), transaction.atomic():
            rows = [lock_or_create(name, "look").row for name in states(frozen.at) if name != "of another schema"]
            seen.append([row.__dict__ | {"_state": None} for row in rows])
    assert seen[0] == seen[1]
