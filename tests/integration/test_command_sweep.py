"""`manage.py maintenance sweep`: from cron, with and without a broker (alarm-host 15.7; field reports D1, E3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maintenance import dispatch
from tests.commands import maintenance
from tests.factories import live_lease, make_row, row_of

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]


@pytest.fixture
def broker_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every publish be refused."""

    def refuse(hint: Hint) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(dispatch, "send", refuse)


def make_unsent(*thread_ids: str, **columns: Any) -> None:
    for thread_id in thread_ids:
        make_row(2, 1, slot_ms=-1_000, thread_id=thread_id, **columns)


def test_a_sweep_hands_over_what_is_due_and_counts_it(sent: list[Hint]) -> None:
    make_unsent("a", "b")
    make_row(2, 1, slot_ms=3_600_000, thread_id="far")

    ran = maintenance("sweep", as_json=True)

    assert ran.json == {"exit_code": 0, "handed_over": 2, "reaped": 0, "not_taken": 0}
    assert sorted(hint.thread_id for hint in sent) == ["a", "b"]


def test_a_sweep_goes_on_until_nothing_is_left(sent: list[Hint], settings: Any) -> None:
    settings.MAINTENANCE = {"SWEEP_BATCH": 2}
    make_unsent(*"abcde")

    assert "Handed over 5 threads." in maintenance("sweep").out


def test_a_broker_that_takes_nothing_makes_the_sweep_exit_1_and_name_the_way_out(broker_down: None) -> None:
    make_unsent("a", "b")

    ran = maintenance("sweep")

    assert ran.code == 1
    assert "did not take 2 due threads" in ran.out
    assert "sweep --inline" in ran.out


def test_a_sweep_releases_the_leases_of_dead_processes(sent: list[Hint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maintenance.owner.machine", lambda: "boot:1")
    monkeypatch.setattr("maintenance.owner.is_provably_dead", lambda _: True)
    make_unsent("t", **{**live_lease(), "lease_owner": "boot:1:2:3"})

    assert maintenance("sweep", as_json=True).json["reaped"] == 1
    assert row_of().lease_token is None


def test_d1_an_inline_sweep_runs_what_is_due_without_celery(stage: Stage, broker_down: None) -> None:
    make_unsent("a", "b", hint_seq=1)

    ran = maintenance("sweep", "--inline", as_json=True)

    assert (ran.code, ran.json["count"]) == (0, 2)
    assert row_of("a").processed == row_of("b").processed == 2


def test_an_inline_sweep_keeps_to_its_limit(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    make_unsent("a", "b", "c")

    assert maintenance("sweep", "--inline", "--limit", 2, as_json=True).json["count"] == 2


def test_an_inline_sweep_exits_1_if_a_pass_failed(stage: Stage, sent: list[Hint]) -> None:
    make_unsent("t")

    def fail(work: object) -> None:
        raise ValueError

    stage.runtime.on_head = fail

    assert maintenance("sweep", "--inline").code == 1
