"""`manage.py maintenance ensure`: arming what is owed; after a failover (the design, 3.6; alarm-host 18.10)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError
from django.db import OperationalError

from maintenance import failover
from maintenance.models import OperatorAction, ThreadMaintenance
from tests.commands import maintenance
from tests.factories import MS, live_lease, make_row, numbers, row_of

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen", "sent")]


def test_a_pending_deadline_of_one_thread_is_armed(stage: Stage, frozen: FrozenClock) -> None:
    make_row(3, 3)
    stage.sink.inert = False
    stage.sink.deadline = frozen.at + 5_000 * MS

    assert maintenance("ensure", "t").code == 0
    assert numbers(frozen.at) == (3, 3, 0, 5_000)


def test_a_thread_that_only_lacks_its_row_gets_one(stage: Stage, frozen: FrozenClock) -> None:
    stage.ledger.known = frozenset({"t"})

    assert maintenance("ensure", "t").code == 0
    assert numbers(frozen.at) == (1, 0, 0, 1_000)


def test_an_unknown_thread_exits_2_and_gets_no_row(stage: Stage) -> None:
    assert maintenance("ensure", "nobody").code == 2
    assert not ThreadMaintenance.objects.exists()


def test_without_a_thread_the_pending_timers_without_a_slot_are_armed(stage: Stage, frozen: FrozenClock) -> None:
    make_row(3, 3, timer_at=frozen.at + 7_000 * MS)

    ran = maintenance("ensure", as_json=True)

    assert ran.json == {"exit_code": 0, "ensured": 1, "failed": {}}
    assert numbers(frozen.at) == (3, 3, 0, 7_000)


def test_all_looks_at_every_thread_and_one_that_fails_stops_no_other(
    stage: Stage, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maintenance.management.repairing.PAGE", 2)
    for thread_id in ("a", "b", "c"):
        make_row(3, 3, thread_id=thread_id, timer_at=frozen.at + 7_000 * MS)
    ThreadMaintenance.objects.filter(pk="a").update(schema_version=2)

    ran = maintenance("ensure", "--all", as_json=True)

    assert ran.code == 1
    assert list(ran.json["failed"]) == ["a"]
    assert numbers(frozen.at, "b") == numbers(frozen.at, "c") == (3, 3, 0, 7_000)


# --- After a failover ---------------------------------------------------------------------------


def test_after_a_failover_every_thread_has_a_new_generation_and_sequence_and_an_alarm(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3, thread_id="quiet", seq=5)
    make_row(4, 3, slot_ms=200, thread_id="soon", seq=6)
    make_row(3, 3, slot_ms=60_000, thread_id="far", seq=7)

    ran = maintenance("ensure", "--after-failover", as_json=True)

    assert ran.json == {"exit_code": 0, "moved": 3, "last": "soon", "done": True, "error": ""}
    assert numbers(frozen.at, "quiet") == (4, 3, 0, 1_000)
    assert numbers(frozen.at, "soon") == (5, 3, 0, 200)
    assert numbers(frozen.at, "far") == (4, 3, 0, 1_000)
    assert [row_of(name).alarm_seq for name in ("quiet", "soon", "far")] == [6, 7, 8]
    assert sent == []


def test_after_a_failover_the_sweep_hands_every_thread_over_anew(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, slot_ms=0, seq=6, hint_seq=6, hint_at=frozen.at, hint_attempts=1)

    maintenance("ensure", "--after-failover")
    maintenance("sweep")

    assert [(hint.thread_id, hint.seq) for hint in sent] == [("t", 7)]


def test_after_a_failover_a_live_lease_is_left_to_its_pass() -> None:
    make_row(4, 3, slot_ms=0, **live_lease())
    token = row_of().lease_token

    maintenance("ensure", "--after-failover")

    assert row_of().lease_token == token


def test_after_a_failover_the_run_is_audited() -> None:
    make_row(3, 3)

    maintenance("ensure", "--after-failover", "--actor", "ann", "--reason", "db-2 took over")

    done = OperatorAction.objects.get()
    assert (done.action, done.thread_id, done.actor, done.reason) == (
        "after_failover",
        "*",
        "ann",
        "db-2 took over",
    )
    assert done.after == {"moved": 1, "last": "t"}


def test_after_a_failover_each_batch_commits_and_the_run_can_be_gone_on_with() -> None:
    for thread_id in "abcde":
        make_row(3, 3, thread_id=thread_id)

    stopped = list(islice(failover.move_on(batch=2), 1))[-1]
    assert (stopped.count, stopped.last) == (2, "b")
    assert list(failover.move_on(after=stopped.last, batch=2))[-1] == failover.Moved(count=3, last="e")

    assert set(ThreadMaintenance.objects.values_list("dirty", flat=True)) == {4}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OperationalError], ids=["ctrl-c", "database gone"])
def test_after_a_failover_a_stopped_run_says_where_to_go_on(
    stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_after_one(**_: object) -> Iterator[failover.Moved]:
        yield failover.Moved(count=500, last="order 7")
        raise stop

    monkeypatch.setattr(failover, "move_on", stop_after_one)
    ran = maintenance("ensure", "--after-failover")

    assert ran.code == 1
    assert "Moved 500 threads" in ran.out
    assert "--after-failover --after 'order 7'" in ran.out
    assert not OperatorAction.objects.exists()


def test_after_a_failover_a_run_can_begin_behind_a_thread() -> None:
    make_row(3, 3, thread_id="a")
    make_row(3, 3, thread_id="b")

    assert maintenance("ensure", "--after-failover", "--after", "a", as_json=True).json["moved"] == 1
    assert (row_of("a").dirty, row_of("b").dirty) == (3, 4)


def test_after_a_failover_a_batch_whose_rows_are_held_too_long_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_row(3, 3)
    tried: list[str] = []
    really = failover._try_batch

    def held_once(after: str, batch: int) -> tuple[str, int] | None:
        tried.append(after)
        if len(tried) == 1:
            raise OperationalError
        return really(after, batch)

    monkeypatch.setattr(failover, "_try_batch", held_once)

    assert maintenance("ensure", "--after-failover").code == 0
    assert tried == ["", "", "t"]


def test_a_thread_and_all_threads_exclude_each_other(stage: Stage) -> None:
    with pytest.raises(CommandError):
        maintenance("ensure", "t", "--all")
