"""`manage.py maintenance pause|resume|release|wake`: reason, actor, audit row, exit codes (alarm-host R-09, R-19)."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError

from maintenance.errors import DurableAlarmError
from maintenance.management import operating
from maintenance.models import OperatorAction
from tests.commands import maintenance
from tests.factories import MS, live_lease, make_row, numbers, row_of

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen", "sent")]

VERBS = ("pause", "resume", "release", "wake")


def in_state_for(verb: str, frozen: FrozenClock, thread_id: str = "t") -> None:
    """A thread on which the verb has something to do."""
    columns: dict[str, dict[str, Any]] = {
        "pause": {},
        "resume": {"paused_at": frozen.at},
        "release": {"quarantined_at": frozen.at, "quarantine_reason": "worker lost", "starts_since_finish": 20},
        "wake": {},
    }
    make_row(4, 3, slot_ms=60_000, thread_id=thread_id, **columns[verb])


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_changes_its_thread_and_keeps_who_and_why(verb: str, frozen: FrozenClock) -> None:
    in_state_for(verb, frozen)

    ran = maintenance(verb, "t", "--reason", "a drill", "--actor", "ann", as_json=True)

    done = OperatorAction.objects.get()
    assert ran.code == 0
    assert ran.json["threads"][0]["changed"] is True
    assert (done.action, done.thread_id, done.actor, done.reason) == (verb, "t", "ann", "a drill")
    assert done.before != done.after


def test_pause_and_resume(frozen: FrozenClock) -> None:
    in_state_for("pause", frozen)

    maintenance("pause", "t", "--reason", "a drill")
    assert row_of().paused_at == frozen.at

    maintenance("resume", "t", "--reason", "over")
    assert row_of().paused_at is None


def test_release_counts_starts_from_zero_and_makes_the_thread_due(frozen: FrozenClock) -> None:
    in_state_for("release", frozen)

    maintenance("release", "t", "--reason", "fixed")

    assert (row_of().quarantined_at, row_of().starts_since_finish) == (None, 0)
    assert numbers(frozen.at) == (4, 3, 0, 0)


def test_r19_wake_makes_the_next_pass_due_now_and_hands_it_over(frozen: FrozenClock) -> None:
    make_row(3, 3)

    maintenance("wake", "t", "--reason", "a look")

    assert numbers(frozen.at) == (3, 3, 0, 0)
    assert row_of().hint_seq == row_of().alarm_seq


@pytest.mark.parametrize("verb", VERBS)
def test_a_reason_is_mandatory(verb: str, frozen: FrozenClock) -> None:
    in_state_for(verb, frozen)

    for words in ((), ("--reason", ""), ("--reason", "  ")):
        with pytest.raises(CommandError):
            maintenance(verb, "t", *words)
    assert not OperatorAction.objects.exists()


def test_without_an_actor_the_user_of_the_system_is_kept(frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    in_state_for("pause", frozen)
    monkeypatch.setattr(getpass, "getuser", lambda: "deploy")

    maintenance("pause", "t", "--reason", "a drill")

    assert OperatorAction.objects.get().actor == "deploy"


def test_a_user_without_a_name_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the user id may have no entry."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr(getpass, "getuser", nameless)

    assert operating.os_user() == "unknown OS user"


@pytest.mark.parametrize("verb", ["pause", "resume", "release"])
def test_r09_repeating_changes_nothing_and_exits_0(verb: str, frozen: FrozenClock) -> None:
    in_state_for(verb, frozen)
    maintenance(verb, "t", "--reason", "a drill")
    after_first = row_of()

    ran = maintenance(verb, "t", "--reason", "a drill", as_json=True)

    assert ran.code == 0
    assert ran.json["threads"][0]["changed"] is False
    assert (row_of().paused_at, row_of().quarantined_at) == (after_first.paused_at, after_first.quarantined_at)
    assert (row_of().alarm_at, row_of().alarm_seq) == (after_first.alarm_at, after_first.alarm_seq)


def test_waking_a_thread_that_a_pass_holds_exits_3_and_leaves_its_slot(frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=50, **live_lease())

    assert maintenance("wake", "t", "--reason", "a look").code == 3
    assert numbers(frozen.at) == (4, 3, 0, 50)


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_thread_exits_2_and_leaves_no_audit_row(verb: str) -> None:
    assert maintenance(verb, "nobody", "--reason", "a drill").code == 2
    assert not OperatorAction.objects.exists()


def test_of_several_threads_each_is_told_and_an_unknown_one_stops_no_other(frozen: FrozenClock) -> None:
    for thread_id in ("a", "c"):
        in_state_for("pause", frozen, thread_id)

    ran = maintenance("pause", "a", "nobody", "c", "--reason", "a drill")

    assert ran.code == 2
    assert "a: paused." in ran.out
    assert "no thread 'nobody'" in ran.out
    assert row_of("c").paused_at == frozen.at


def test_a_thread_named_twice_is_done_once(frozen: FrozenClock) -> None:
    in_state_for("pause", frozen)

    maintenance("pause", "t", "t", "--reason", "a drill")

    assert OperatorAction.objects.count() == 1


def test_a_failure_exits_1_and_the_next_thread_is_done_all_the_same(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thread_id in ("a", "b"):
        in_state_for("pause", frozen, thread_id)
    really = operating.VERBS["pause"].perform

    def fail_for_a(thread_id: str, **said: str) -> bool:
        if thread_id == "a":
            raise DurableAlarmError("set alarm", "another transaction held the thread's row")
        return really(thread_id, **said)

    monkeypatch.setitem(
        operating.VERBS, "pause", operating.Verb(perform=fail_for_a, help="hold", done="paused", unchanged="")
    )
    ran = maintenance("pause", "a", "b", "--reason", "a drill")

    assert ran.code == 1
    assert "another transaction held" in ran.out
    assert row_of("b").paused_at == frozen.at


def test_a_due_thread_is_handed_over_at_once_when_it_is_resumed(
    frozen: FrozenClock, sent: list[Hint], django_capture_on_commit_callbacks: Any
) -> None:
    make_row(4, 3, slot_ms=-1_000, paused_at=frozen.at - MS, hint_seq=1, hint_at=frozen.at - 900 * MS)

    with django_capture_on_commit_callbacks(execute=True):
        maintenance("resume", "t", "--reason", "over")

    assert [hint.thread_id for hint in sent] == ["t"]
