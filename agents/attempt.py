"""An attempt, as a driver holds it: what it works on, what it may record, and when it must stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import DatabaseError, InterfaceError

from agents import failpoints, ledger, log, metrics, records, settlement, transactions
from agents.canonical import Json
from agents.errors import StepError
from agents.hotpath import Claimed
from agents.journal import Journal
from agents.log import Batch, Tail
from agents.records import Failure, NewRecord, StepSettled
from agents.states import Ending, Outcome
from maintenance.errors import INTERRUPTIONS, RuntimeFailed, WakefulError, described
from maintenance.ports import Work

logger = structlog.get_logger("wakeful.agents")


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

    @property
    def thread_id(self) -> str:
        return self.work.thread_id

    def now(self) -> datetime:
        """The database's time at the claim plus what has passed since: for the times that records show."""
        return self.claimed.started_at + timedelta(seconds=time.monotonic() - self._started)

    def boundary(self) -> None:
        """A place where nothing is open: the attempt stops here if it has to, or was asked to."""
        self.raise_if_stopped()
        with self._stopping():
            self.work.checkpoint()
            if self.work.should_yield():
                raise Yielded

    def raise_if_stopped(self) -> None:
        """Once stopped, an attempt stays stopped, even if the handler went on regardless."""
        if self._stopped is not None:
            raise self._stopped

    def recorded(self, name: str) -> Json | None:
        """The recorded output of a step of this run."""
        with self._stopping():
            output = self.journal.output(name)
        if output is not None:
            metrics.steps.labels("replayed").inc()
        return output

    def record_step(self, name: str, output: Json) -> None:
        """Commits the output of a step: from here on its body never runs again.

        Raises `StepError` inside a transaction of the handler's own: rolled back with it, a record would be none.
        """
        if transactions.is_open():
            raise StepError(f"step {name!r} was used inside transaction.atomic(); leave the block first")
        payload = StepSettled(run=self.run, name=name, attempt=self.claimed.number, output=output)
        record = NewRecord(records.step_id(self.run, name), payload)
        failpoints.hit(failpoints.STEP_BEFORE, self.thread_id)
        with self._stopping(), self._appending, self.work.fenced(progress=True):
            tail = self._append(Batch(record.record_id, [record]))
            failpoints.hit(failpoints.STEP_APPENDED, self.thread_id)
        self._tail = tail
        metrics.steps.labels("recorded").inc()
        failpoints.hit(failpoints.STEP_AFTER, self.thread_id)

    def settle(self, result: Result) -> None:
        """Commits the outcome: the record and the final row, together."""
        self.raise_if_stopped()
        self.work.checkpoint()
        failpoints.hit(failpoints.SETTLE_BEFORE, self.thread_id)
        with self.work.fenced(progress=True):
            self._append(
                settlement.batch(
                    self.claimed.submission_id,
                    result.outcome,
                    run=self.run,
                    result=result.result,
                    failure=result.failure,
                )
            )
            failpoints.hit(failpoints.SETTLE_APPENDED, self.thread_id)
            settlement.finalize(self.claimed.submission_id, result.outcome, self.claimed.number, Ending.SETTLED)
        metrics.settlements.labels(result.outcome).inc()
        metrics.attempts.labels(Ending.SETTLED).inc()
        failpoints.hit(failpoints.SETTLE_AFTER, self.thread_id)

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

    def _append(self, batch: Batch) -> Tail:
        appended = log.append(self.thread_id, batch, tail=self._tail, producer=self._producer, at=self.now())
        return appended.tail

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Remembers what stopped the attempt, and keeps a failure of the machinery from looking like the handler's."""
        try:
            yield
        except (Yielded, Halted, *INTERRUPTIONS) as stopped:
            self._stopped = stopped
            raise
        except (RuntimeFailed, DatabaseError, InterfaceError) as error:
            self._stopped = Halted(error)
            raise self._stopped from error
