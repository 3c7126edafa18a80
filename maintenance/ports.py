"""What a pass needs from outside. Protocols with inert defaults, named in settings by dotted path.

Common contract of every hook: bounded; idempotent; never touches the slot, the generations or the lease
(maintenance decides those from what the hook reports); may be called by several processes for several threads.
A hook that is inert says so (`inert = True`) and costs a pass nothing, not even a call.

A hook that writes does it inside `work.fenced(...)`, so that a pass which lost its thread can commit nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

REPAIRED = "repaired"
"""Disposition of a recovery report that counts as progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery decided for one submission and what came of it."""

    submission_id: str
    decision: str
    disposition: str
    """`repaired`, `deferred`, `unknown` or `none`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residue:
    """What a thread still owes, read by finish after it locked the row."""

    nonterminal: int = 0
    """Unsettled submissions."""
    autonomous: bool = False
    """Some of them can go on without outside input."""
    claimable_head: bool = False
    """The head can be claimed at once."""
    next_due: datetime | None = None
    """The earliest durable timer that has not come and on which the next pass would act."""


NOTHING_LEFT = Residue()


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunHead:
    """A head attempt that was begun in the transaction which began its pass."""

    reports: Sequence[RecoveryReport]
    """What recovery would have reported: nothing was there to decide."""
    run: Callable[[Work], int]
    """The rest of `Runtime.process_head`."""


BeginHead = Callable[[str, int], BegunHead | None]
"""Begins the head of a thread under an epoch, in a transaction that has locked the thread's row. It writes all of it
or nothing; `None`: the pass has to begin its head itself."""


@dataclass(slots=True)
class Tally:
    """What the block of `Work.settling` did; it may correct the number."""

    settled: int = 1
    """Submissions that the block settled."""
    residue: Residue | None = None
    """What is left, if the block has read that itself: it spares finish its scan, and is read as late as a scan's."""
    begin_next: BeginHead | None = None
    """Begins the next head attempt in this very transaction, if the pass goes on in place. Its failure takes the
    settlement back, so it must not fail because of what that head is."""


class Work(Protocol):
    """A running pass, as its hooks see it."""

    @property
    def thread_id(self) -> str: ...

    @property
    def epoch(self) -> int:
        """Producer epoch: grows with each pass of the thread (may repeat after a database crash)."""

    @property
    def generation(self) -> int | None:
        """The generation being worked off; `None` in a caught-up pass."""

    def should_yield(self) -> bool:
        """True after the soft yield (10 min) or when the worker drains: stop at the next safe boundary."""

    def checkpoint(self) -> None:
        """Raises `PassInterrupted` when the pass may begin no new durable unit."""

    def fenced(self, *, progress: bool = False, bump: bool = False) -> AbstractContextManager[None]:
        """A transaction that can commit only while this pass still holds its thread.

        `progress`: the write is real progress (not a claim, a repair or a replay). `bump`: the write can change
        what recovery would decide and is made by a hook that finish does not scan. Raises `OwnershipLost`.
        """

    def settling(self) -> AbstractContextManager[Tally]:
        """As `fenced(progress=True)`, for the last write of a head attempt: the settlement.

        If no other hook has its turn after the head, the pass finishes in this very transaction, after the block
        and under the same row lock. So the block is short, does not pass the gate, and is not inside another
        transaction; whatever the attempt writes after it raises `OwnershipLost`.
        """


class Runtime(Protocol):
    """Canonical work. Both members run only in an actionable pass, recovery strictly first."""

    inert: bool
    commits_before_user_code: bool
    """True if every head attempt commits synchronously before it runs user code or touches the network.
    Then the pass may begin with an asynchronous commit."""

    @property
    def begin_head(self) -> BeginHead | None:
        """Begins the head attempt in the transaction that begins its pass, if recovery could decide nothing.

        `None`: this runtime does not. Asked only if no other hook has its turn before the head. That commit is
        synchronous, since user code comes after it.
        """

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        """Repairs every nonterminal submission of the thread; one report for each."""

    def process_head(self, work: Work) -> int:
        """At most one head attempt; returns the number of submissions that it settled (0 or 1; more if joined)."""


class Ledger(Protocol):
    """Reads of what is owed."""

    inert: bool

    def thread_exists(self, thread_id: str) -> bool:
        """Whether a thread without a maintenance row is known; then the row is made on delivery."""

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        """Reads the rows themselves, in the caller's transaction, in a statement begun after its row lock."""


class Publication(Protocol):
    """One sink of committed facts. Its backlog is derived from its cursor and the head of the log."""

    inert: bool
    inline: bool
    """Local and under 50 ms: gets one drain right after the commit of a mutation."""
    gates_execution: bool
    """While it has a `gate_deadline`, canonical work waits."""
    wants_generation: bool
    """It wants `prepare_generation`."""

    def invalidate(self, thread_id: str) -> None:
        """Marks source-derived work as pending, inside the mutation's transaction. Local."""

    def prepare_generation(self, work: Work, generation: int) -> None:
        """The generation being certified; restarts a scan only if it differs from the last one. Local."""

    def drain(self, work: Work | None, thread_id: str) -> None:
        """Delivers a bounded amount, at least once, in order; stores acknowledgements and retry times first.

        Without `work` it is the drain after a commit: it may write only its own cursor, by compare-and-set.
        """

    def pending_deadline(self, thread_id: str) -> datetime | None:
        """When more is due; `None` when caught up. Local read."""

    def gate_deadline(self, thread_id: str) -> datetime | None:
        """The deadline that holds canonical work back, if this sink gates execution."""

    def pending_threads(self, limit: int) -> Iterable[str]:
        """Threads with a pending deadline, for the audit that re-arms lost slots."""


class Projection(Protocol):
    """A disposable index over the log."""

    inert: bool

    def pending_deadline(self, thread_id: str) -> datetime | None: ...

    def drain_due(self, work: Work) -> bool:
        """At most one backfill batch if one is due; whether it ran."""

    def pending_threads(self, limit: int) -> Iterable[str]: ...


class MessageDelivery(Protocol):
    """The outbox to other threads. Never holds canonical work back."""

    inert: bool

    def pending_deadline(self, thread_id: str) -> datetime | None: ...

    def drain(self, work: Work) -> None:
        """One bounded wave over what is due; a settled outcome is written with `fenced(bump=True)`."""

    def pending_threads(self, limit: int) -> Iterable[str]: ...


class InertRuntime:
    """No canonical work."""

    inert = True
    commits_before_user_code = False
    begin_head = None

    def run_recovery(self, work: Work) -> Sequence[RecoveryReport]:
        del work
        return ()

    def process_head(self, work: Work) -> int:
        del work
        return 0


class InertLedger:
    """Nothing is owed; no thread is known without a row."""

    inert = True

    def thread_exists(self, thread_id: str) -> bool:
        del thread_id
        return False

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        del thread_id, reports
        return NOTHING_LEFT


class InertPublication:
    """A sink that wants nothing; a base for sinks that implement only some members."""

    inert = True
    inline = False
    gates_execution = False
    wants_generation = False

    def invalidate(self, thread_id: str) -> None:
        del thread_id

    def prepare_generation(self, work: Work, generation: int) -> None:
        del work, generation

    def drain(self, work: Work | None, thread_id: str) -> None:
        del work, thread_id

    def pending_deadline(self, thread_id: str) -> datetime | None:
        del thread_id
        return None

    def gate_deadline(self, thread_id: str) -> datetime | None:
        return self.pending_deadline(thread_id) if self.gates_execution else None

    def pending_threads(self, limit: int) -> Iterable[str]:
        del limit
        return ()


class InertProjection:
    """No index."""

    inert = True

    def pending_deadline(self, thread_id: str) -> datetime | None:
        del thread_id
        return None

    def drain_due(self, work: Work) -> bool:
        del work
        return False

    def pending_threads(self, limit: int) -> Iterable[str]:
        del limit
        return ()


class InertMessageDelivery:
    """No outbox."""

    inert = True

    def pending_deadline(self, thread_id: str) -> datetime | None:
        del thread_id
        return None

    def drain(self, work: Work) -> None:
        del work

    def pending_threads(self, limit: int) -> Iterable[str]:
        del limit
        return ()
