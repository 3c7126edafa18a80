"""What a person may do to a thread, and what is written down about it (alarm-host, 15.13; L-37, R-09, K11)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maintenance import operations, sweep, tasks
from maintenance.delivery import Outcome
from maintenance.errors import DurableAlarmError, OperationDenied
from maintenance.gate import mutation
from maintenance.models import OperatorAction, PassRun, ThreadMaintenance
from maintenance.ports import Residue
from maintenance.testing import deliver
from tests.arrivals import arrive, lease_of_another, stored
from tests.concurrency import elsewhere
from tests.factories import MS, make_row, numbers, row_of
from tests.marks import maintenance_database
from tests.stubs import Broken, fail

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database

rolled_back = pytest.mark.django_db
"""For cases that nothing after a commit can change."""

Verb = Callable[..., bool]

VERBS: list[Verb] = [
    operations.force_pass,
    operations.wake,
    operations.pause,
    operations.resume,
    operations.release,
]
HOUR = timedelta(hours=1)


def do(verb: Verb) -> bool:
    return verb("t", actor="ada", reason="the customer asked")


# --- What is written down -----------------------------------------------------------------------


@rolled_back
@pytest.mark.parametrize("verb", VERBS)
def test_r09_every_action_leaves_who_what_why_and_the_row_before_and_after(frozen: FrozenClock, verb: Verb) -> None:
    make_row(4, 3, 1, 5_000, 7)

    do(verb)

    action = OperatorAction.objects.get()
    assert (action.actor, action.thread_id, action.reason) == ("ada", "t", "the customer asked")
    assert (action.action, action.created_at) == (verb.__name__, frozen.at)
    assert action.before["alarm_at"] == (frozen.at + 5_000 * MS).isoformat()
    after = row_of().alarm_at
    assert after is not None
    assert action.after["alarm_at"] == after.isoformat()
    assert action.after["alarm_seq"] == row_of().alarm_seq


@rolled_back
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("actor", "reason"), [("", "why"), ("ada", ""), ("ada", " \n"), (" ", "why")])
def test_r09_without_an_actor_or_a_reason_nothing_is_read_or_written(
    frozen: FrozenClock, verb: Verb, actor: str, reason: str
) -> None:
    make_row(4, 3, 1, 5_000)
    before = stored()

    with pytest.raises(OperationDenied, match="needs an actor and a reason"):
        verb("t", actor=actor, reason=reason)

    assert stored() == before
    assert not OperatorAction.objects.exists()


@rolled_back
@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_thread_is_named_and_gets_no_row(frozen: FrozenClock, verb: Verb) -> None:
    with pytest.raises(DurableAlarmError, match="there is no such thread"):
        do(verb)

    assert not ThreadMaintenance.objects.exists()
    assert not OperatorAction.objects.exists()


@rolled_back
@pytest.mark.parametrize("verb", VERBS)
def test_r09_doing_it_twice_changes_the_row_once_and_tells_of_both(
    frozen: FrozenClock, sent: list[Hint], verb: Verb
) -> None:
    made = make_row(4, 3, 1, 5_000)
    ThreadMaintenance.objects.update(
        paused_at=made.alarm_at if verb is operations.resume else None,
        quarantined_at=made.alarm_at if verb is operations.release else None,
    )
    assert do(verb)
    before = {name: value for name, value in stored().items() if not name.startswith("hint_")}

    do(verb)

    assert {name: value for name, value in stored().items() if not name.startswith("hint_")} == before
    assert OperatorAction.objects.count() == 2


@rolled_back
@pytest.mark.parametrize("verb", [operations.resume, operations.release])
def test_taking_back_what_was_not_done_says_so(frozen: FrozenClock, verb: Verb) -> None:
    make_row(4, 3, 1, 5_000)

    assert do(verb) is False
    assert numbers(frozen.at) == (4, 3, 1, 5_000)


@rolled_back
def test_pausing_a_paused_thread_says_so_and_keeps_since_when(frozen: FrozenClock) -> None:
    make_row(4, 3, 1, 5_000)
    assert do(operations.pause) is True
    since = row_of().paused_at
    frozen.at += HOUR

    assert do(operations.pause) is False
    assert row_of().paused_at == since


# --- Now ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [operations.force_pass, operations.wake])
def test_a_thread_in_its_backoff_is_pulled_to_now_and_handed_over(
    frozen: FrozenClock, sent: list[Hint], verb: Verb
) -> None:
    make_row(4, 3, 1, 60_000, 7, hint_seq=7, hint_at=frozen.at, hint_attempts=1)

    assert do(verb) is True

    assert numbers(frozen.at) == (4, 3, 1, 0)
    assert [(hint.seq, hint.eta) for hint in sent] == [(8, None)]


@pytest.mark.parametrize("verb", [operations.force_pass, operations.wake])
def test_a_thread_that_is_overdue_is_handed_over_again_at_once(
    frozen: FrozenClock, sent: list[Hint], verb: Verb
) -> None:
    """Its message may be lost, and the person will not wait for a grace."""
    make_row(4, 3, 1, -1_000, 7, hint_seq=7, hint_at=frozen.at, hint_attempts=7)

    assert do(verb) is True

    assert numbers(frozen.at) == (4, 3, 1, -1_000)
    assert [hint.seq for hint in sent] == [7]


@pytest.mark.parametrize("verb", [operations.force_pass, operations.wake])
def test_r19_a_quiet_thread_gets_one_caught_up_pass_and_no_generation(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], verb: Verb
) -> None:
    make_row(4, 4, 2)

    do(verb)
    result = arrive(sent[0].seq)

    assert result.report is not None
    assert result.report.phase == "caught-up"
    assert numbers(frozen.at) == (4, 4, 2, None)


@pytest.mark.parametrize("verb", [operations.force_pass, operations.wake])
def test_a_thread_that_a_pass_holds_is_left_alone(frozen: FrozenClock, sent: list[Hint], verb: Verb) -> None:
    make_row(4, 3, 1, 5_000, **lease_of_another())

    assert do(verb) is False

    assert numbers(frozen.at) == (4, 3, 1, 5_000)
    assert sent == []


# --- Pause and resume ---------------------------------------------------------------------------


def test_a_mutation_of_a_paused_thread_is_accepted_and_waits(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    do(operations.pause)

    with mutation("t"):
        pass

    assert numbers(frozen.at) == (4, 3, 0, 0)
    assert sent == []
    assert (sweep.sweep(), deliver("t").outcome) == (0, Outcome.PAUSED)


def test_a_pause_lets_the_pass_that_runs_end_and_keeps_the_next_one_back(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    def pause_and_mutate(_: object) -> None:
        do(operations.pause)
        with mutation("t"):
            pass

    stage.runtime.on_head = pause_and_mutate
    make_row(4, 3, 0, 0)

    assert deliver("t").outcome is Outcome.RAN

    assert row_of().processed == 4
    assert row_of().is_dirty
    assert sent == []
    assert deliver("t").outcome is Outcome.PAUSED


def test_resuming_hands_over_a_slot_that_lies_ahead_with_its_eta(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 0, 3_000, 5, hint_seq=5, hint_at=frozen.at, hint_attempts=3)
    do(operations.pause)

    do(operations.resume)

    assert [(hint.seq, hint.eta) for hint in sent] == [(5, frozen.at + 3_000 * MS)]


def test_resuming_a_thread_that_owes_nothing_sends_nothing(frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 4)
    do(operations.pause)

    do(operations.resume)

    assert sent == []
    assert numbers(frozen.at) == (4, 4, 0, None)


def test_k11_a_message_from_before_a_pause_does_nothing_during_and_after_the_pass_of_the_resume(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    stage.runtime.on_head = fail
    make_row(4, 3, 0, 0)
    deliver("t")
    (old,) = sent
    do(operations.pause)
    frozen.at += HOUR
    do(operations.resume)
    seen: list[tuple[Outcome, int]] = []

    def arrive_again(_: object) -> None:
        seen.append((arrive(old.seq).outcome, row_of().failures))

    stage.runtime.on_head = arrive_again
    assert arrive(sent[-1].seq).outcome is Outcome.RAN
    seen.append((arrive(old.seq).outcome, row_of().failures))

    assert seen == [(Outcome.SUPERSEDED, 1), (Outcome.CLEARED, 0)]
    assert stage.calls.count("head") == 2


# --- Quarantine ---------------------------------------------------------------------------------


def quarantined(frozen: FrozenClock, **columns: object) -> None:
    make_row(4, 3, 1, 60_000, 7, starts_since_finish=20, failures=9)
    ThreadMaintenance.objects.update(quarantined_at=frozen.at, quarantine_reason="worker lost", **columns)


def test_a_release_forgets_the_starts_and_hands_the_thread_over_at_once(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    quarantined(frozen)

    assert do(operations.release) is True

    row = row_of()
    assert (row.quarantined_at, row.quarantine_reason) == (None, "")
    assert (row.starts_since_finish, row.failures) == (0, 0)
    assert [hint.eta for hint in sent] == [None]
    assert arrive(sent[0].seq).outcome is Outcome.RAN


def test_a_quarantined_thread_is_not_woken(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    quarantined(frozen)

    do(operations.wake)

    assert sent == []
    assert (sweep.sweep(), deliver("t").outcome) == (0, Outcome.PAUSED)
    assert stage.calls == []


def test_a_forced_pass_runs_a_quarantined_thread_and_leaves_it_in_quarantine(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    quarantined(frozen)

    assert deliver("t", forced=True).outcome is Outcome.RAN

    assert row_of().processed == 4
    assert row_of().quarantined_at is not None


# --- By force -----------------------------------------------------------------------------------


def take(hint: Hint) -> str:
    """What the worker makes of the message."""
    outcome: str = tasks.run_pass(hint.thread_id, hint.seq, v=1, trigger=hint.trigger, hops=hint.hops)
    return outcome


@pytest.mark.parametrize(
    "held",
    [{"paused_at": ...}, {"quarantined_at": ...}, {"starts_since_finish": 20}],
    ids=lambda held: next(iter(held)),
)
def test_a_forced_pass_runs_once_whatever_holds_the_thread_back_and_leaves_it_held(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], held: dict[str, Any]
) -> None:
    columns: dict[str, Any] = {name: frozen.at if value is ... else value for name, value in held.items()}
    make_row(4, 3, 1, 60_000, **columns)
    do(operations.force_pass)

    assert take(sent[0]) == Outcome.RAN

    assert row_of().processed == 4
    assert (row_of().paused_at, row_of().quarantined_at) == (columns.get("paused_at"), columns.get("quarantined_at"))
    assert PassRun.objects.get().trigger == "forced"


def test_what_comes_after_a_forced_pass_of_a_paused_thread_waits(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 1, 0, paused_at=frozen.at)
    stage.ledger.residue = Residue(nonterminal=1, autonomous=True, claimable_head=True)
    stage.runtime.settled = 1
    do(operations.force_pass)

    take(sent[0])

    assert stage.calls.count("head") == 1
    assert (len(sent), sweep.sweep(), deliver("t").outcome) == (1, 0, Outcome.PAUSED)


def test_a_forced_message_that_comes_again_changes_nothing(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    """After a visibility timeout, say: the slot has moved since."""
    make_row(4, 3, 1, 0, paused_at=frozen.at)
    do(operations.force_pass)
    take(sent[0])
    before = stored()

    assert take(sent[0]) == Outcome.SUPERSEDED
    assert stored() == before


def test_a_pause_that_comes_after_the_force_is_stronger(stage: Stage, frozen: FrozenClock, sent: list[Hint]) -> None:
    make_row(4, 3, 1, 60_000)
    do(operations.force_pass)
    do(operations.pause)

    assert take(sent[0]) == Outcome.SUPERSEDED
    assert stage.calls == []


# --- One transaction ----------------------------------------------------------------------------


def test_an_action_that_cannot_be_written_down_does_not_happen(
    frozen: FrozenClock, sent: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OperatorAction, "save", fail)
    make_row(4, 3, 1, 60_000)
    before = stored()

    with pytest.raises(Broken):
        do(operations.force_pass)

    assert elsewhere(stored) == before
    assert sent == []
