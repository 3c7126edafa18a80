"""An attempt, as a driver holds it: what it works on, what it may record, and when it must stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from uuid import UUID

import structlog
from django.db import DatabaseError, InterfaceError

from agents import answers, calls, failpoints, ledger, log, metrics, records, settlement, suspension, transactions
from agents.answers import Question
from agents.canonical import Json
from agents.conf import get_settings
from agents.errors import StepError
from agents.hotpath import Claimed
from agents.journal import Journal
from agents.log import EMPTY, Batch, Tail
from agents.models import AbortIntent
from agents.records import Failure, NewRecord, StepSettled
from agents.states import Ending, Outcome, Wait
from agents.succession import Queue
from maintenance.errors import INTERRUPTIONS, RuntimeFailed, WakefulError, described
from maintenance.ports import BegunHead, Tally, Work

logger = structlog.get_logger("wakeful.agents")


BeginNext = Callable[[Queue, Tail, datetime, str, int], BegunHead | None]
"""`BeginHead` for the queue that a settlement leaves, with the tail of its log and the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to: a `result` if it completed, a `failure` if it failed."""

    outcome: Outcome
    result: Json | None = None
    failure: Failure | None = None


class Yielded(BaseException):
    """The attempt stops at this boundary because it was asked to; the next one goes on from here.

    A `BaseException`, so that a handler's own `except Exception` does not swallow it.
    """


class Suspended(BaseException):
    """The run waits for somebody else; its row says so and its attempt has ended. Nothing is left to do here."""


class Aborted(BaseException):
    """An abort of this submission was accepted: the run ends here and is settled as aborted."""


class Halted(BaseException):
    """The machinery under the attempt failed: it ends, and its submission stays owed."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        super().__init__(described(cause))


class Attempt:
    """One attempt at one submission, under the lease of the pass that made it.

    It owns the tail of the log while the lease lives: one append at a time, each fenced by the lease.
    """

    def __init__(self, work: Work, claimed: Claimed, tail: Tail) -> None:
        self.work = work
        self.claimed = claimed
        self.run = records.run_id(claimed.submission_id)
        self.journal = Journal(work.thread_id, self.run, claimed.first_sequence, empty=not claimed.input_applied)
        self._tail = tail
        self._producer = log.this_process(work.epoch)
        self._started = time.monotonic()
        self._appending = threading.RLock()
        self._stopped: BaseException | None = None
        self._took = self._aborted = False
        self._next_look = self._started + get_settings().abort_poll.total_seconds()

    @property
    def thread_id(self) -> str:
        return self.work.thread_id

    @cached_property
    def calls_made(self) -> int:
        """Tool calls of the run, each try counted: what the log had, and what this attempt adds to it."""
        return self.journal.count("tool-prepared")

    def now(self) -> datetime:
        """The database's time at the claim plus what has passed since: for the times that records show."""
        return self.claimed.started_at + timedelta(seconds=time.monotonic() - self._started)

    def boundary(self) -> None:
        """A place where nothing is open: the attempt stops here if it has to, or was asked to."""
        self.raise_if_stopped()
        with self.stopping():
            self.look()
            if self.work.should_yield():
                raise Yielded

    def look(self) -> None:
        """Raises if nothing more may be begun: past the deadline, taken over, aborted."""
        self.work.checkpoint()
        # A run that has been left waiting is no longer this attempt's to settle; recovery does it.
        if not isinstance(self._stopped, Suspended) and self.aborted():
            raise Aborted

    def stop(self, why: BaseException) -> None:
        """From here on nothing is begun and nothing settled, whatever the handler makes of what it was told."""
        self._stopped = self._stopped or why

    def raise_if_stopped(self) -> None:
        """Once stopped, an attempt stays stopped, even if the handler went on regardless."""
        if self._stopped is not None:
            raise self._stopped

    def recorded(self, name: str) -> Json | None:
        """The recorded output of a step of this run."""
        with self.stopping():
            output = self.journal.output(name)
        if output is not None:
            metrics.steps.labels("replayed").inc()
        return output

    def record_step(self, name: str, output: Json) -> None:
        """Commits the output of a step: from here on its body never runs again.

        Raises `StepError` inside a transaction of the handler's own: rolled back with it, a record would be none.
        """
        payload = StepSettled(run=self.run, name=name, attempt=self.claimed.number, output=output)
        record = NewRecord(records.step_id(self.run, name), payload)
        failpoints.hit(failpoints.STEP_BEFORE, self.thread_id)
        with self.writing(f"step {name!r}") as append:
            append(Batch(record.record_id, [record]))
            failpoints.hit(failpoints.STEP_APPENDED, self.thread_id)
        metrics.steps.labels("recorded").inc()
        failpoints.hit(failpoints.STEP_AFTER, self.thread_id)

    @contextmanager
    def writing(self, what: str, *, progress: bool = True) -> Iterator[Callable[[Batch], None]]:
        """One fenced transaction of this attempt: gives the append to its log; rows may be changed beside it.

        `progress`: what is written is real progress of the run. Raises `StepError` inside a transaction of the
        handler's own: rolled back with it, a record would be none.
        """
        if transactions.is_open():
            raise StepError(f"{what} was used inside transaction.atomic(); leave the block first")
        tail = EMPTY

        def append(batch: Batch) -> None:
            nonlocal tail
            appended = log.append(self.thread_id, batch, tail=tail, producer=self._producer, at=self.now())
            tail = appended.tail

        with self.stopping(), self._appending:
            tail = self._tail
            with self.work.fenced(progress=progress):
                yield append
            self._tail = tail

    def suspend(
        self,
        wait: Wait,
        name: str,
        *,
        wake_at: datetime | None = None,
        batch: Batch | None = None,
        unless: Callable[[], bool] | None = None,
        also: Callable[[], None] | None = None,
        ending: Ending = Ending.SUSPENDED,
    ) -> None:
        """Ends this attempt and lets the submission wait, at no cost, for what `wait` and `name` say.

        Returns, with only `batch` and `also` written, if `unless` (asked under the lock; by default whether the
        answer is there) says that there is nothing to wait for. Otherwise raises `Suspended`.
        """
        question = Question(
            submission_id=self.claimed.submission_id,
            thread_id=self.thread_id,
            wait=wait,
            name=name,
            wake_at=wake_at,
        )
        # A new question is progress of the run; asking the same one again, or giving up for now, is not.
        progress = batch is not None and ending is Ending.SUSPENDED
        failpoints.hit(failpoints.SUSPEND_BEFORE, self.thread_id)
        # Race closed: an answer that commits between the look for it and the suspension would wake nobody. The
        # gate's lock is ours from the first statement, so it is either seen here or comes after and finds us waiting.
        with self.writing(f"waiting for {wait.label} {name!r}", progress=progress) as append:
            if batch is not None:
                append(batch)
            if also is not None:
                also()
            waits = not (unless() if unless is not None else answers.is_there(question))
            if waits:
                suspension.put_to_sleep(self.claimed.submission_id, wait, name, wake_at)
                ledger.end_attempt(self.claimed.submission_id, self.claimed.number, ending)
            failpoints.hit(failpoints.SUSPEND_WRITTEN, self.thread_id)
        failpoints.hit(failpoints.SUSPEND_AFTER, self.thread_id)
        if waits:
            metrics.attempts.labels(ending).inc()
            self._stopped = Suspended()
            raise self._stopped

    def settle(self, result: Result, begin_next: BeginNext | None = None) -> None:
        """Commits the outcome: the record and the final row, together.

        `begin_next` begins the next head in the same commit, if the pass goes on in place.
        """
        self.raise_if_stopped()
        self.work.checkpoint()
        self.settle_stopped(result, self._left_open, begin_next)

    def settle_stopped(
        self, result: Result, left_open: Callable[[], tuple[NewRecord, ...]], begin_next: BeginNext | None = None
    ) -> None:
        """As `settle`, also for an attempt that was stopped; `left_open` are the records of what stays open."""
        failpoints.hit(failpoints.SETTLE_BEFORE, self.thread_id)
        with self._appending, self.work.settling() as tally:
            self._conclude(result, left_open(), tally, begin_next)
            failpoints.hit(failpoints.SETTLE_APPENDED, self.thread_id)
        metrics.settlements.labels(result.outcome).inc()
        metrics.attempts.labels(Ending.SETTLED).inc()
        failpoints.hit(failpoints.SETTLE_AFTER, self.thread_id)

    def _conclude(
        self, result: Result, left_open: tuple[NewRecord, ...], tally: Tally, begin_next: BeginNext | None
    ) -> None:
        end = settlement.Conclusion(
            submission_id=self.claimed.submission_id,
            outcome=result.outcome,
            run=self.run,
            number=self.claimed.number,
            ending=Ending.SETTLED,
            result=result.result,
            failure=result.failure,
            joined=self.joined(),
        )
        at = self.now()
        sealed = log.seal(settlement.batch_of(end, left_open), self._tail, self._producer, at)
        done = settlement.conclude_run(self.thread_id, end, sealed)
        if done is None:
            settlement.conclude(end, self._append, with_records=left_open)
            return
        tally.residue = done.left.residue()
        if begin_next is not None and done.left.plain:
            tally.begin_next = partial(begin_next, done.left, sealed.after, at)

    def end(self, ending: Ending) -> None:
        """Notes an end without an outcome, if that is still possible; whoever comes next finds out otherwise."""
        metrics.attempts.labels(ending).inc()
        failpoints.hit(failpoints.END_BEFORE, self.thread_id)
        try:
            with self.work.fenced():
                ledger.end_attempt(self.claimed.submission_id, self.claimed.number, ending)
        except (WakefulError, DatabaseError, InterfaceError) as error:
            logger.warning("attempt.end_not_noted", thread=self.thread_id, ending=ending, error=described(error))
        failpoints.hit(failpoints.END_AFTER, self.thread_id)

    @contextmanager
    def ending(self) -> Iterator[Callable[[Batch], None]]:
        """The fenced transaction that settles: gives the append to the log. Nothing is recorded after it."""
        with self._appending, self.work.settling():
            yield self._append

    def _left_open(self) -> tuple[NewRecord, ...]:
        """Says which calls of earlier attempts this one did not come by again: nobody will hear of them any more."""
        if not self.journal.knows("tool-prepared"):
            return ()
        return calls.audit(self.claimed.submission_id, "the run ended without coming back to this call")

    def joined(self) -> Sequence[UUID]:
        """What settles with this run; asked for only if the run ever took followers along."""
        if not self._took and not self.journal.knows("followups"):
            return ()
        return ledger.joined_to(self.thread_id, self.claimed.submission_id)

    def took_followers(self) -> None:
        """Notes that others settle with this run from here on."""
        self._took = True

    def aborted(self) -> bool:
        """Whether an abort was accepted; looked up at most once in `ABORT_POLL_MS`."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + get_settings().abort_poll.total_seconds()
            self._aborted = AbortIntent.objects.filter(pk=self.claimed.submission_id).exists()
        return self._aborted

    def _append(self, batch: Batch) -> None:
        log.append(self.thread_id, batch, tail=self._tail, producer=self._producer, at=self.now())

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Remembers what stopped the attempt, and keeps a failure of the machinery from looking like the handler's."""
        try:
            yield
        except (Yielded, Suspended, Aborted, Halted, *INTERRUPTIONS) as stopped:
            self._stopped = stopped
            raise
        except (RuntimeFailed, DatabaseError, InterfaceError) as error:
            self._stopped = Halted(error)
            raise self._stopped from error
