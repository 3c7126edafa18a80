"""What the rules of the ledger machine are done with: messages, mortal processes, a look at every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar
from unittest import mock

from django.apps import apps
from django.db import connection, transaction
from django.db.models import Exists, OuterRef
from hypothesis.stateful import RuleBasedStateMachine

from agents import api
from agents.attempt import Attempt
from agents.models import AbortIntent, Approval, CallStatus, Submission, ToolCall, UnknownResolution
from agents.states import State
from maintenance import dispatch, failpoints, passes, reaper
from maintenance.delivery import Delivery, Outcome
from maintenance.dispatch import Hint
from maintenance.models import ThreadMaintenance
from maintenance.reaper import Observed
from maintenance.testing import Crash, fixed_jitter, frozen_clock
from tests.model.story import AGENT, VERBS, World, told_in

T = "t"
START = datetime(2030, 1, 1, tzinfo=UTC)
Table = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Seen:
    """What there is for the next rule to do."""

    open: bool = False
    asked: bool = False
    unknown: bool = False


class Hands(RuleBasedStateMachine):
    """One thread, everybody who has to do with it, and what is remembered of what they saw."""

    verbs: ClassVar = sorted(VERBS)
    """What is submitted when nothing else is left to do holds two of these."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.frozen = self.stack.enter_context(frozen_clock(START))
        self.stack.enter_context(fixed_jitter(0.5))
        self.stack.enter_context(mock.patch.object(dispatch, "send", self._send))
        self.stack.enter_context(mock.patch.object(Attempt, "aborted", _is_aborted))
        self.world = World()
        self.stack.enter_context(told_in(self.world))
        self.messages: list[Hint] = []
        self.receipts: dict[tuple[str, str], api.Receipt] = {}
        self.outcomes: dict[str, tuple[str, ...]] = {}
        self.looked_at: Table = {}
        self.seen = Seen()
        self.zombies = 0
        """How many passes came back after another one had taken over."""

    def _send(self, hint: Hint) -> None:
        self.messages.append(hint)

    def arriving(self, which: int) -> Delivery:
        """Mostly the message of the slot, when it is due; else one of those that are under way, however late."""
        if which > 1 or not self.messages:
            row = self._armed_row()
            self.frozen.at = max(self.frozen.at, row.alarm_at or self.frozen.at)
            return Delivery(thread_id=T, seq=row.alarm_seq)
        hint = pick(self.messages, which)
        self.messages.remove(hint)
        return Delivery(thread_id=hint.thread_id, seq=hint.seq, trigger=hint.trigger, hops=hint.hops)

    def _armed_row(self) -> ThreadMaintenance:
        """The row with a slot; without one, somebody submits something first."""
        row = self.row()
        if row.alarm_at is None:
            number = len(self.receipts)
            script = [self.verbs[(number + offset) % len(self.verbs)] for offset in (0, 3)]
            self.receipts["cid", str(number)] = api.submit(
                T, AGENT, script, idempotency_key=str(number), principal="cid"
            )
            row = self.row()
        return row

    def take(self, delivery: Delivery) -> None:
        result = passes.deliver(delivery, may_go_on=lambda: True)
        for goes_on in (True, False):
            assert result.outcome is not Outcome.FAILED, result.error
            if result.next is None:
                return
            result = passes.go_on(result.next, may_go_on=goes_on.__bool__)
        assert result.outcome is not Outcome.FAILED, result.error

    @contextmanager
    def mortal(self, nth: int) -> Iterator[None]:
        """Whoever acts in the block dies at the `nth` failpoint that it comes to; its death is found out."""
        try:
            with at(nth, _die):
                yield
        except Crash:
            self._find_the_dead()

    def _find_the_dead(self) -> None:
        row = ThreadMaintenance.objects.filter(pk=T).first()
        if row is not None and row.lease_token is not None:
            reaper.release_of_the_dead(Observed(T, row.lease_token, "the dead"))

    def answer(self, call: ToolCall, resolution: str = "") -> None:
        happened = self.world.charged[str(call.submission_id), call.call] > 0
        resolution = resolution or ("completed-with-result" if happened else "never-started")
        result = "found out" if resolution == "completed-with-result" else None
        api.resolve_unknown(call.submission_id, call.call, resolution, result=result, actor="eve", reason="she looked")

    def look(self) -> Seen:
        return Seen(
            open=bool(self.open_rows()),
            asked=Approval.objects.filter(decision="").exists(),
            unknown=bool(self.unknown_calls()),
        )

    def is_leased(self) -> bool:
        """Whether a pass holds the thread, and is between two of its transactions."""
        return between_transactions() and self.row().lease_token is not None

    def row(self) -> ThreadMaintenance:
        return ThreadMaintenance.objects.get(pk=T)

    def open_rows(self) -> list[Submission]:
        return list(Submission.objects.exclude(state=State.SETTLED).order_by("queue_sequence"))

    def unknown_calls(self) -> list[ToolCall]:
        """Calls about whose present try nobody has said anything."""
        answered = UnknownResolution.objects.filter(tool_call=OuterRef("pk"), tries=OuterRef("tries"))
        calls = ToolCall.objects.filter(status=CallStatus.UNKNOWN, submission__state=State.UNKNOWN)
        return list(calls.exclude(Exists(answered)).order_by("pk"))


def empty_tables() -> None:
    """Empties the tables of both apps."""
    with transaction.atomic(), connection.cursor() as cursor:
        for table in _names():
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


def tables() -> Table:
    """Every row of both apps."""
    found: Table = {}
    with connection.cursor() as cursor:
        for table in _names():
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)} ORDER BY 1")
            found[table] = cursor.fetchall()
    return found


def _names() -> list[str]:
    labels = ("wakeful_agents", "wakeful_maintenance")
    return [model._meta.db_table for label in labels for model in apps.get_app_config(label).get_models()]


@contextmanager
def at(nth: int, act: Callable[[], object], *, where: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Does `act` once, at the `nth` failpoint of those that the block comes to and `where` lets count."""
    passed = 0

    def hit(_: str, thread_id: str) -> None:
        nonlocal passed
        passed += where()
        if passed == nth and nth:
            failpoints.arm(None)
            act()

    failpoints.arm(hit)
    try:
        yield
    finally:
        failpoints.arm(None)


def between_transactions() -> bool:
    return not connection.in_atomic_block


def _die() -> None:
    raise Crash("the machine")


def _is_aborted(attempt: Attempt) -> bool:
    """Looks each time, so that a run depends on no clock but ours."""
    return AbortIntent.objects.filter(pk=attempt.claimed.submission_id).exists()


def pick(items: list[Any], which: int) -> Any:
    return items[which % len(items)]
