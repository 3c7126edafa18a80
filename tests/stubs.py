"""Ports that a test scripts, sharing one list of the calls that a pass made, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn

from maintenance.errors import PassInterrupted
from maintenance.hooks import Hooks
from maintenance.ports import NOTHING_LEFT, BeginHead, InertPublication, RecoveryReport, Residue, Work

Body = Callable[[Work], None]


class Broken(Exception):
    """What a failing port of a test raises; its text must appear in no record."""


def fail(*_: object) -> NoReturn:
    """A port that fails."""
    message = "secret detail of the host"
    raise Broken(message)


def be_interrupted(*_: object) -> NoReturn:
    """A port that notices that the worker drains."""
    reason = "the worker drains"
    raise PassInterrupted(reason)


@dataclass
class StubRuntime:
    """Recovery and head by script; each may raise or mutate through its body."""

    calls: list[str]
    reports: Sequence[RecoveryReport] = ()
    settled: int = 0
    on_recovery: Body | None = None
    on_head: Body | None = None
    inert: bool = False
    commits_before_user_code: bool = False
    begin_head: BeginHead | None = None

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        self.calls.append("recovery")
        if self.on_recovery:
            self.on_recovery(work)
        return self.reports

    def process_head(self, work: Work) -> int:
        self.calls.append("head")
        if self.on_head:
            self.on_head(work)
        return self.settled


@dataclass
class StubLedger:
    """Answers the residual scan; may raise."""

    calls: list[str]
    residue: Residue = NOTHING_LEFT
    known: frozenset[str] = frozenset()
    on_scan: Callable[[], None] | None = None
    inert: bool = False

    def thread_exists(self, thread_id: str) -> bool:
        return thread_id in self.known

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        self.calls.append("scan")
        if self.on_scan:
            self.on_scan()
        return self.residue


@dataclass
class StubPublication(InertPublication):
    """A sink whose deadline and drain are scripted."""

    calls: list[str]
    deadline: datetime | None = None
    gates_execution: bool = False
    inline: bool = False
    wants_generation: bool = False
    on_drain: Callable[[], None] | None = None
    on_deadline: Callable[[], None] | None = None
    on_invalidate: Callable[[], None] | None = None
    on_prepare: Callable[[], None] | None = None
    prepared: list[int] = field(default_factory=list)
    inert: bool = False

    def invalidate(self, thread_id: str) -> None:
        self.calls.append("invalidate")
        if self.on_invalidate:
            self.on_invalidate()

    def prepare_generation(self, work: Work, generation: int) -> None:
        self.calls.append("prepare")
        self.prepared.append(generation)
        if self.on_prepare:
            self.on_prepare()

    def drain(self, work: Work | None, thread_id: str) -> None:
        self.calls.append("drain")
        if self.on_drain:
            self.on_drain()

    def pending_deadline(self, thread_id: str) -> datetime | None:
        if self.on_deadline:
            self.on_deadline()
        return self.deadline


@dataclass
class StubProjection:
    """A projection whose deadline and backfill are scripted."""

    calls: list[str]
    deadline: datetime | None = None
    on_drain: Body | None = None
    on_deadline: Callable[[], None] | None = None
    inert: bool = False

    def pending_deadline(self, thread_id: str) -> datetime | None:
        if self.on_deadline:
            self.on_deadline()
        return self.deadline

    def drain_due(self, work: Work) -> bool:
        self.calls.append("backfill")
        if self.on_drain:
            self.on_drain(work)
        return True

    def pending_threads(self, limit: int) -> Iterable[str]:
        return ()


@dataclass
class StubMessages:
    """An outbox whose deadline and wave are scripted."""

    calls: list[str]
    deadline: datetime | None = None
    on_drain: Body | None = None
    on_deadline: Callable[[], None] | None = None
    inert: bool = False

    def pending_deadline(self, thread_id: str) -> datetime | None:
        if self.on_deadline:
            self.on_deadline()
        return self.deadline

    def drain(self, work: Work) -> None:
        self.calls.append("wave")
        if self.on_drain:
            self.on_drain(work)

    def pending_threads(self, limit: int) -> Iterable[str]:
        return ()


class Stage:
    """All stubs of one test, the list of what was called, and the hooks over them.

    A test scripts them by setting attributes (`stage.sink.inert = False`); an inert stub is never called.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.runtime = StubRuntime(self.calls)
        self.ledger = StubLedger(self.calls)
        self.sink = StubPublication(self.calls, inert=True)
        self.projection = StubProjection(self.calls, inert=True)
        self.messages = StubMessages(self.calls, inert=True)
        self.hooks = Hooks(
            runtime=self.runtime,
            ledger=self.ledger,
            publication=(self.sink,),
            projection=self.projection,
            messages=self.messages,
        )
