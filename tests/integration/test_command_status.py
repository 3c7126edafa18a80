"""`manage.py maintenance status`: from the database alone (field reports A9, D1, D3)."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError
from django.db import OperationalError

from maintenance import status
from maintenance.models import MutationLease, WorkerHeartbeat
from tests.commands import maintenance
from tests.factories import MS, live_lease, make_row

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]

HOUR_MS = 3_600_000


def make_late(*thread_ids: str, by_ms: float = 10_000, **columns: Any) -> None:
    for thread_id in thread_ids:
        make_row(2, 1, slot_ms=-by_ms, thread_id=thread_id, **columns)


# --- All threads --------------------------------------------------------------------------------


def test_the_numbers_of_all_threads(frozen: FrozenClock) -> None:
    make_late("late", by_ms=60_000, hint_seq=1, hint_at=frozen.at - 5_000 * MS)
    make_late("running", **live_lease())
    make_late("paused", paused_at=frozen.at)
    make_late("quarantined", quarantined_at=frozen.at)
    make_row(2, 1, slot_ms=500, thread_id="stalled", stalls=2)
    make_row(2, 1, slot_ms=900, thread_id="failing", failures=1)
    make_row(3, 3, thread_id="quiet")
    MutationLease.objects.create(
        token=uuid.uuid4(),
        thread_id="late",
        generation=2,
        label="call",
        owner="x",
        started_at=frozen.at,
        expires_at=frozen.at + MS,
    )
    WorkerHeartbeat.objects.create(worker="alive", seen_at=frozen.at, started_at=frozen.at)
    WorkerHeartbeat.objects.create(worker="gone", seen_at=frozen.at - timedelta(minutes=1), started_at=frozen.at)

    told = maintenance("status", as_json=True).json

    counts = ("threads", "armed", "dirty", "due", "leased", "stalled", "failing", "paused", "quarantined", "workers")
    assert {name: told[name] for name in counts} == {
        "threads": 7,
        "armed": 6,
        "dirty": 6,
        "due": 1,
        "leased": 1,
        "stalled": 1,
        "failing": 1,
        "paused": 1,
        "quarantined": 1,
        "workers": 1,
    }
    assert told["mutations_in_flight"] == 1
    assert told["health"]["overdue"] == 1
    assert told["health"]["oldest_seconds"] == 60
    assert told["last_hand_over"].startswith((frozen.at - 5_000 * MS).isoformat()[:19])
    assert told["next_due"].startswith((frozen.at + 500 * MS).isoformat()[:19])


def test_an_empty_database_has_a_status_too() -> None:
    ran = maintenance("status")

    assert ran.code == 0
    assert ran.out.startswith("Threads       0")
    assert "Nothing is overdue" in ran.out


# --- One thread ---------------------------------------------------------------------------------


def test_a9_a_far_deadline_its_reason_and_its_token_come_from_the_database_alone(frozen: FrozenClock) -> None:
    make_row(3, 3, slot_ms=HOUR_MS, seq=9, timer_at=frozen.at + HOUR_MS * MS)

    told = maintenance("status", "t", as_json=True).json

    assert told["state"] == "waiting"
    assert told["deadline"].startswith((frozen.at + HOUR_MS * MS).isoformat()[:19])
    assert told["due_in_seconds"] == 3_600
    assert told["reason"] == "a durable timer"
    assert told["seq"] == 9
    assert told["handed_over"] == {"seq": None, "at": None, "attempts": 0, "current": False}


def test_a9_the_last_hand_over_is_told_with_its_time(frozen: FrozenClock) -> None:
    make_late("t", hint_seq=1, hint_at=frozen.at - 4_000 * MS, hint_attempts=3)

    told = maintenance("status", "t", as_json=True).json["handed_over"]
    lines = maintenance("status", "t").out

    assert (told["seq"], told["attempts"], told["current"]) == (1, 3, True)
    assert told["at"].startswith((frozen.at - 4_000 * MS).isoformat()[:19])
    assert "handed over 3 times, last 4 s ago, not started: queue 'maintenance'" in lines


def test_an_unknown_thread_exits_2() -> None:
    ran = maintenance("status", "nobody", as_json=True)

    assert ran.code == 2
    assert ran.json["thread"] == "nobody"
    assert "no thread 'nobody'" in ran.json["error"]


@pytest.mark.parametrize(
    ("columns", "state", "words"),
    [
        ({"dirty": 3, "slot_ms": None}, "quiet", "Nothing is owed"),
        ({"dirty": 5, "slot_ms": -10}, "due", "generation 5 is not acknowledged (the last one is 3)"),
        ({"dirty": 5, "slot_ms": -10}, "due", "not handed to the broker yet"),
        ({"dirty": 5, "slot_ms": 400, "failures": 3}, "waiting", "retry after 3 failed passes in a row"),
        ({"dirty": 5, "slot_ms": 400, "stalls": 1}, "waiting", "1 pass in a row made no progress"),
        ({"dirty": 5, "slot_ms": 400, "starts_since_finish": 2}, "waiting", "2 passes began and did not end"),
        ({"dirty": 3, "slot_ms": 400}, "waiting", "a deadline of publication, projection or messages"),
        ({"dirty": 5, "slot_ms": -10, "mutating_until": 10}, "due", "a pre-armed mutation is in flight"),
        ({"dirty": 5, "slot_ms": -10, "paused_at": -10}, "paused", "goes on after resume"),
        (
            {"dirty": 5, "slot_ms": -10, "quarantined_at": -10, "quarantine_reason": "worker lost"},
            "quarantined",
            "In quarantine (worker lost)",
        ),
    ],
)
def test_the_explanation_says_why_a_thread_does_not_move(
    frozen: FrozenClock, columns: dict[str, Any], state: str, words: str
) -> None:
    moments = {"mutating_until", "paused_at", "quarantined_at"}
    make_row(
        processed=3, **{name: frozen.at + value * MS if name in moments else value for name, value in columns.items()}
    )

    told = maintenance("status", "t", as_json=True).json

    assert told["state"] == state
    assert words in told["explanation"]


def test_a_thread_that_runs_tells_who_holds_it_and_how_long() -> None:
    make_row(5, 3, slot_ms=-10, **live_lease(12_000))

    told = maintenance("status", "t", as_json=True).json

    assert told["state"] == "running"
    assert "at most 12 s" in told["explanation"]
    assert (told["lease"]["owner"], told["lease"]["epoch"], told["lease"]["live"]) == ("another pass", 1, True)


def test_a_lease_that_has_expired_holds_nothing() -> None:
    make_row(5, 3, slot_ms=-10, **live_lease(-1))

    told = maintenance("status", "t", as_json=True).json

    assert (told["state"], told["lease"]["live"]) == ("due", False)


# --- Health -------------------------------------------------------------------------------------


def test_a_healthy_system_exits_0() -> None:
    make_row(2, 1, slot_ms=-100)

    ran = maintenance("status", "--check")

    assert ran.code == 0
    assert ran.out == "Nothing is overdue by more than 2 s.\n"


def test_d1_two_sweeps_after_a_deadline_the_check_exits_1_with_count_and_oldest_age(frozen: FrozenClock) -> None:
    for number in range(5):
        make_late(f"t{number}", by_ms=-number, hint_seq=1, hint_at=frozen.at)
    assert maintenance("status", "--check").code == 0

    frozen.at += 2_005 * MS
    ran = maintenance("status", "--check", as_json=True)

    assert ran.code == 1
    assert ran.json["health"] == {
        "ok": False,
        "overdue": 5,
        "oldest_seconds": 2.005,
        "oldest_thread": "t0",
        "handed_over_not_started": 5,
        "queue": "maintenance",
        "threshold_seconds": 2,
        "text": "5 threads are overdue, the oldest by 2 s (t0). 5 handed over, not started: queue 'maintenance'.",
    }


def test_s07_the_age_of_what_is_due_grows_with_the_clock_and_is_none_when_nothing_is(frozen: FrozenClock) -> None:
    def oldest() -> Any:
        return maintenance("status", "--check", "--overdue", "0", as_json=True).json["health"]["oldest_seconds"]

    make_late("ahead", by_ms=-60_000)
    assert oldest() is None
    make_late("t", by_ms=0)
    ages = []
    for _ in range(3):
        frozen.at += 1_000 * MS
        ages.append(oldest())
    assert ages == [1, 2, 3]


def test_d3_a_queue_that_nobody_takes_from_is_named(frozen: FrozenClock, settings: Any) -> None:
    settings.MAINTENANCE = {"QUEUE": "maintenence"}
    make_late("t", hint_seq=1, hint_at=frozen.at)

    assert "1 handed over, not started: queue 'maintenence'." in maintenance("status", "--check").out


def test_what_no_sweep_has_handed_over_is_told_apart(frozen: FrozenClock) -> None:
    make_late("handed", hint_seq=1, hint_at=frozen.at)
    make_late("never", "refused", hint_seq=None)

    text = maintenance("status", "--check").out

    assert "3 threads are overdue" in text
    assert "1 handed over, not started" in text
    assert "2 not handed over: no sweep runs" in text


def test_the_threshold_is_given_in_seconds_and_what_is_exactly_as_late_passes() -> None:
    make_late("t", by_ms=10_000)

    assert maintenance("status", "--check", "--overdue", "9.999").code == 1
    assert maintenance("status", "--check", "--overdue", "10").code == 0


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan"])
def test_a_threshold_that_is_no_time_is_refused(seconds: str) -> None:
    with pytest.raises(CommandError):
        maintenance("status", "--check", f"--overdue={seconds}")


def test_what_is_held_back_or_running_is_not_overdue(frozen: FrozenClock) -> None:
    make_late("paused", paused_at=frozen.at)
    make_late("quarantined", quarantined_at=frozen.at)
    make_late("running", **live_lease())

    assert maintenance("status", "--check").code == 0


def test_a_dead_pass_is_overdue_from_the_end_of_its_lease(frozen: FrozenClock) -> None:
    """While a lease lives, a slot's effective due time is the later of slot and expiry."""
    make_late("t", by_ms=60_000, **live_lease(-3_000))

    assert maintenance("status", "--check", as_json=True).json["health"]["oldest_seconds"] == 3


def test_a_check_reads_the_index_once_for_the_numbers_and_once_for_the_name(
    django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_late("t")

    with django_assert_num_queries(2):
        status.health()


def test_a_database_that_is_gone_is_said_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise OperationalError("password=swordfish")

    monkeypatch.setattr("maintenance.status.health", gone)
    ran = maintenance("status", "--check")

    assert ran.code == 1
    assert "maintenance doctor" in ran.err
    assert "swordfish" not in ran.out + ran.err


def test_with_json_an_error_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise OperationalError

    monkeypatch.setattr("maintenance.status.health", gone)

    told = maintenance("status", "--check", as_json=True).json

    assert told["exit_code"] == 1
    assert "The database is unavailable" in told["error"]
