"""`manage.py maintenance pass`: exit codes, JSON, limits (alarm-host R-11, R-12; the design, 3.6 "Forced passes")."""

from __future__ import annotations

import getpass
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError

from maintenance.clock import FrozenClock
from maintenance.management.commands.maintenance import Command
from maintenance.models import OperatorAction, PassRun, ThreadMaintenance
from maintenance.ports import NOTHING_LEFT, Residue, Work
from tests.commands import maintenance
from tests.factories import MS, live_lease, make_row, row_of
from tests.stubs import Stage

if TYPE_CHECKING:
    from maintenance.dispatch import Hint

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen", "sent")]

FORCE = ("--force", "--reason", "a drill")


def make_due(*thread_ids: str, **columns: Any) -> None:
    """Dirty threads, each due a little after the one before it."""
    for position, thread_id in enumerate(thread_ids):
        make_row(2, 1, slot_ms=position - 1_000, thread_id=thread_id, **columns)


def ran_threads() -> list[str]:
    return list(PassRun.objects.order_by("id").values_list("thread_id", flat=True))


def fail(work: Work) -> None:
    raise ValueError("the secret is swordfish")


# --- One thread ---------------------------------------------------------------------------------


def test_r11_a_due_thread_runs_here_and_exits_0(stage: Stage) -> None:
    make_row(4, 3, slot_ms=0)

    ran = maintenance("pass", "t")

    assert ran.code == 0
    assert ran.out.startswith("t: ran (actionable)")
    assert stage.calls == ["recovery", "head", "scan"]
    assert row_of().processed == 4


def test_r11_json_holds_the_report(stage: Stage) -> None:
    make_row(4, 3, slot_ms=0)
    stage.runtime.settled = 1

    ran = maintenance("pass", "t", as_json=True)

    assert ran.json == {
        "exit_code": 0,
        "thread": "t",
        "outcome": "ran",
        "report": {"phase": "actionable", "recovered": 0, "settled": 1, "nonterminal": 0, "alarm": "cleared"},
        "error": "",
    }


def test_r11_a_failed_pass_exits_1_and_tells_no_foreign_text(stage: Stage) -> None:
    make_row(4, 3, slot_ms=0)
    stage.runtime.on_head = fail

    ran = maintenance("pass", "t", as_json=True)

    assert ran.code == 1
    assert ran.json["outcome"] == "failed"
    assert "ValueError" in ran.json["error"]
    assert "swordfish" not in ran.out + ran.err


def test_r11_an_unknown_thread_exits_2_and_gets_no_row(stage: Stage) -> None:
    ran = maintenance("pass", "nobody")

    assert ran.code == 2
    assert "no thread 'nobody'" in ran.out
    assert not ThreadMaintenance.objects.exists()


def test_a_thread_that_is_older_than_its_row_runs(stage: Stage) -> None:
    stage.ledger.known = frozenset({"t"})

    assert maintenance("pass", "t").code == 0
    assert row_of().processed == 1


@pytest.mark.parametrize("words", [(), FORCE])
def test_r11_a_thread_that_another_pass_holds_exits_3_even_by_force(stage: Stage, words: tuple[str, ...]) -> None:
    make_row(4, 3, slot_ms=0, **live_lease())

    ran = maintenance("pass", "t", *words)

    assert ran.code == 3
    assert "busy" in ran.out
    assert stage.calls == []


@pytest.mark.parametrize("held", ["paused_at", "quarantined_at"])
def test_r11_a_thread_that_is_held_back_exits_4_and_says_what_to_do(
    stage: Stage, frozen: FrozenClock, held: str
) -> None:
    columns: dict[str, Any] = {held: frozen.at}
    make_row(4, 3, slot_ms=0, **columns)

    ran = maintenance("pass", "t")

    assert ran.code == 4
    assert "maintenance resume" in ran.out
    assert stage.calls == []


def test_a_thread_that_goes_into_quarantine_now_exits_4(stage: Stage) -> None:
    make_row(4, 3, slot_ms=0, starts_since_finish=20)

    assert maintenance("pass", "t", as_json=True).json["outcome"] == "quarantined"
    assert maintenance("pass", "t").code == 4


@pytest.mark.parametrize("columns", [{"dirty": 4, "slot_ms": 500}, {"dirty": 3, "slot_ms": None}])
def test_a_thread_that_is_not_due_exits_5_and_names_force(stage: Stage, columns: dict[str, Any]) -> None:
    make_row(processed=3, **columns)

    ran = maintenance("pass", "t")

    assert ran.code == 5
    assert "--force" in ran.out
    assert stage.calls == []


@pytest.mark.parametrize(
    "held",
    [{"slot_ms": 60_000}, {"slot_ms": 0, "paused_at": ...}, {"slot_ms": 0, "quarantined_at": ...}],
    ids=["not due", "paused", "quarantined"],
)
def test_force_overrides_deadline_pause_and_quarantine(stage: Stage, frozen: FrozenClock, held: dict[str, Any]) -> None:
    columns: dict[str, Any] = {name: frozen.at if value is ... else value for name, value in held.items()}
    make_row(4, 3, **columns)

    assert maintenance("pass", "t", *FORCE).code == 0
    assert row_of().processed == 4
    assert PassRun.objects.get().trigger == "forced"


def test_force_is_written_down_before_the_pass_runs(stage: Stage, frozen: FrozenClock) -> None:
    """The pass may be the one that kills its process."""
    make_row(4, 3, slot_ms=60_000, paused_at=frozen.at)
    written: list[OperatorAction] = []
    stage.runtime.on_head = lambda _: written.extend(OperatorAction.objects.all())

    maintenance("pass", "t", *FORCE, "--actor", "ann")

    (action,) = written
    assert (action.action, action.thread_id, action.actor, action.reason) == ("force_pass", "t", "ann", "a drill")
    assert action.before == action.after


def test_force_without_an_actor_keeps_the_user_of_the_system(
    stage: Stage, sent: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_row(4, 3, slot_ms=0)
    monkeypatch.setattr(getpass, "getuser", lambda: "deploy")

    maintenance("pass", "t", *FORCE)

    assert OperatorAction.objects.get().actor == "deploy"
    assert sent == [], "no worker is called to race with this process"


def test_all_dirty_by_force_writes_each_thread_down(stage: Stage) -> None:
    make_due("a", "b")

    maintenance("pass", "--all-dirty", *FORCE)

    assert list(OperatorAction.objects.order_by("id").values_list("thread_id", flat=True)) == ["a", "b"]


def test_force_runs_nothing_that_cannot_be_written_down_and_goes_on_with_the_others(stage: Stage) -> None:
    make_due("from the future", schema_version=2)
    make_due("good")

    ran = maintenance("pass", "--all-dirty", *FORCE, as_json=True)

    assert ran.code == 1
    assert "schema version 2" in ran.json["passes"][0]["error"]
    assert ran_threads() == ["good"]


def test_only_force_is_written_down(stage: Stage) -> None:
    make_due("t")

    maintenance("pass", "t")
    maintenance("pass", "nobody", *FORCE)

    assert not OperatorAction.objects.exists()


def test_a_forced_pass_on_a_quiet_thread_touches_nothing(stage: Stage) -> None:
    """A4: it reads its row, writes nothing to ledger or log, and stops."""
    make_row(3, 3)

    assert maintenance("pass", "t", *FORCE, as_json=True).json["report"]["phase"] == "caught-up"
    assert stage.calls == []
    assert (row_of().dirty, row_of().processed, row_of().alarm_at) == (3, 3, None)


def test_ctrl_c_gives_the_thread_back_and_exits_130(stage: Stage) -> None:
    make_row(4, 3, slot_ms=0)

    def interrupt(work: Work) -> None:
        raise KeyboardInterrupt

    stage.runtime.on_head = interrupt
    ran = maintenance("pass", "t")

    assert ran.code == 130
    assert "given its thread back" in ran.err
    assert row_of().lease_token is None
    assert row_of().is_dirty


def test_a_process_that_is_told_to_end_begins_no_further_pass(stage: Stage) -> None:
    make_due("a", "b")
    before = signal.getsignal(signal.SIGTERM)

    def ask_to_end(work: Work) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    stage.runtime.on_head = ask_to_end
    ran = maintenance("pass", "--due", as_json=True)

    assert (ran.json["count"], ran.json["stopped_early"]) == (1, True)
    assert ran_threads() == ["a"]
    assert signal.getsignal(signal.SIGTERM) is before


# --- What is due --------------------------------------------------------------------------------


def test_r12_due_with_a_limit_runs_the_earliest_and_leaves_the_others(stage: Stage) -> None:
    make_due(*(f"t{number:02}" for number in range(13)))

    ran = maintenance("pass", "--due", "--limit", 10, as_json=True)

    assert ran.code == 0
    assert (ran.json["count"], ran.json["stopped_early"]) == (10, True)
    assert ran_threads() == [f"t{number:02}" for number in range(10)]
    untouched = ThreadMaintenance.objects.filter(processed=1, lease_epoch=0)
    assert sorted(untouched.values_list("pk", flat=True)) == ["t10", "t11", "t12"]


def test_due_without_anything_due_exits_0(stage: Stage) -> None:
    make_row(2, 1, slot_ms=100)

    ran = maintenance("pass", "--due", as_json=True)

    assert ran.json == {"exit_code": 0, "passes": [], "count": 0, "failed": 0, "stopped_early": False}


def test_due_leaves_what_cannot_begin_alone(stage: Stage, frozen: FrozenClock) -> None:
    make_due("due")
    make_due("paused", paused_at=frozen.at)
    make_due("quarantined", quarantined_at=frozen.at)
    make_due("leased", **live_lease())
    make_row(2, 1, slot_ms=1, thread_id="later")

    assert maintenance("pass", "--due").code == 0
    assert ran_threads() == ["due"]


def test_due_takes_a_thread_whose_lease_has_expired(stage: Stage) -> None:
    make_due("orphan", **live_lease(-1))

    assert maintenance("pass", "--due").code == 0
    assert row_of("orphan").processed == 2


def test_due_goes_on_with_a_thread_until_it_rests(stage: Stage) -> None:
    """Three submissions are three passes: cron must not have to come three times."""
    make_due("t")
    left = iter([Residue(nonterminal=2, autonomous=True, claimable_head=True)] * 2)
    stage.runtime.settled = 1

    def settle() -> None:
        stage.ledger.residue = next(left, NOTHING_LEFT)

    stage.ledger.on_scan = settle

    assert maintenance("pass", "--due", as_json=True).json["count"] == 3
    assert row_of().alarm_at is None


def test_due_runs_a_failing_thread_once_the_others_all_the_same_and_exits_1(stage: Stage) -> None:
    make_due("good", "bad", "fine")

    def fail_bad(work: Work) -> None:
        if work.thread_id == "bad":
            raise ValueError

    stage.runtime.on_head = fail_bad
    ran = maintenance("pass", "--due")

    assert ran.code == 1
    assert ran_threads() == ["good", "bad", "fine"]
    assert "3 passes of due threads, 1 failed." in ran.out
    assert "bad: failed" in ran.out


def test_r12_due_keeps_to_its_limit_over_several_pages_and_failures(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maintenance.management.running.PAGE", 1)
    make_due("bad", "b", "c", "d")

    def fail_bad(work: Work) -> None:
        if work.thread_id == "bad":
            raise ValueError

    stage.runtime.on_head = fail_bad

    assert maintenance("pass", "--due", "--limit", 2, as_json=True).json["count"] == 2
    assert ran_threads() == ["bad", "b"]


def test_due_is_not_kept_by_a_thread_that_cannot_even_begin(stage: Stage) -> None:
    make_due("from the future", schema_version=2)
    make_due("good")

    ran = maintenance("pass", "--due", as_json=True)

    assert ran.code == 1
    assert [each["thread"] for each in ran.json["passes"]] == ["from the future", "good"]
    assert "schema version 2" in ran.json["passes"][0]["error"]


# --- What is dirty ------------------------------------------------------------------------------


def test_all_dirty_runs_what_is_not_due_yet_but_nothing_that_is_held_back(stage: Stage, frozen: FrozenClock) -> None:
    make_row(2, 1, slot_ms=60_000, thread_id="backoff")
    make_row(2, 2, slot_ms=60_000, thread_id="clean")
    make_due("paused", paused_at=frozen.at)
    make_due("quarantined", quarantined_at=frozen.at)

    assert maintenance("pass", "--all-dirty").code == 0
    assert ran_threads() == ["backoff"]


def test_all_dirty_by_force_runs_what_is_held_back_too(stage: Stage, frozen: FrozenClock) -> None:
    make_due("paused", paused_at=frozen.at)
    make_due("quarantined", quarantined_at=frozen.at)

    assert maintenance("pass", "--all-dirty", *FORCE).code == 0
    assert ran_threads() == ["paused", "quarantined"]


def test_all_dirty_stops_at_its_limit_and_says_so(stage: Stage) -> None:
    make_due("a", "b", "c")

    ran = maintenance("pass", "--all-dirty", "--limit", 2)

    assert ran_threads() == ["a", "b"]
    assert "limit of 2" in ran.out


def test_all_dirty_turns_pages(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maintenance.management.running.PAGE", 2)
    make_due(*"abcde")

    assert maintenance("pass", "--all-dirty", as_json=True).json["count"] == 5


# --- Arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("t", "--due"),
        ("--due", "--all-dirty"),
        ("--due", *FORCE),
        ("t", "--force"),
        ("t", "--force", "--reason", " "),
        ("t", "--reason", "a drill"),
        ("t", "--actor", "ann"),
        ("--due", "--limit", "0"),
        ("--due", "--limit", "ten"),
    ],
)
def test_arguments_that_make_no_sense_run_nothing(stage: Stage, words: tuple[str, ...]) -> None:
    make_due("t")

    with pytest.raises(CommandError):
        maintenance("pass", *words)
    assert stage.calls == []


@pytest.mark.parametrize("words", [["pass"], ["pass", "--due", "--limit", "x"], ["dance"], []])
def test_a_usage_error_in_a_shell_does_not_look_like_an_unknown_thread(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        Command().run_from_argv(["manage.py", "maintenance", *words])

    assert stopped.value.code == 64
    assert "usage:" in capsys.readouterr().err


def test_a_deadline_within_the_tolerance_is_due(stage: Stage, frozen: FrozenClock) -> None:
    """A delivery up to 20 ms before its deadline counts as on time, whoever delivers."""
    make_row(4, 3, slot_ms=20)
    assert maintenance("pass", "t").code == 0

    make_row(4, 3, slot_ms=21, thread_id="u")
    assert maintenance("pass", "u").code == 5
    assert row_of("u").alarm_at == frozen.at + 21 * MS
