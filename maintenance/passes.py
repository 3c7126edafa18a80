"""One pass, from its delivery to its committed end. Reads like the rule (the design, 3.6)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError, connection, transaction

from maintenance import clock, connections, drain, failpoints, finish, hooks, lease, metrics, renewal, rows
from maintenance.begin import begin
from maintenance.delivery import Begun, Delivery, Outcome
from maintenance.errors import (
    FINISH_PASS,
    INTERRUPTIONS,
    PASS_DEADLINE,
    PREPARE_GENERATION,
    DurableAlarmError,
    OwnershipLost,
    ProjectionFailed,
    PublicationFailed,
    RuntimeFailed,
    ThreadParked,
    WakefulError,
    alarm_operation,
    described,
    is_disconnection,
    traced,
)
from maintenance.finish import Done, Finished
from maintenance.history import Report
from maintenance.hooks import Hooks
from maintenance.ports import RecoveryReport, Tally
from maintenance.rows import Locked
from maintenance.wave import Wave
from maintenance.work import PassWork

log = structlog.get_logger("wakeful.maintenance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one delivery."""

    outcome: Outcome
    report: Report | None = None
    error: str = ""
    failed: bool = False
    """Monitoring must see it: the Celery task fails."""
    next: Begun | None = None
    """The next pass, begun in place of this one: the caller has to `go_on` with it."""


def deliver(delivery: Delivery, *, may_go_on: Callable[[], bool] = lambda: False) -> Result:
    """Answers one delivery: classifies it and, if it is for the slot, runs the pass. Raises only interruptions."""
    failpoints.hit("delivery:received", delivery.thread_id)
    try:
        begun = _begin(delivery)
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - also what a port raised inside the begin transaction
        result = Result(outcome=Outcome.FAILED, error=described(error), failed=True)
    else:
        result = _answer(begun, may_go_on)
    return _reported(delivery.thread_id, delivery.seq, result)


def go_on(begun: Begun, *, may_go_on: Callable[[], bool] = lambda: False) -> Result:
    """Runs a pass that the one before has begun in place. Raises only interruptions."""
    return _reported(begun.lease.thread_id, None, _answer(begun, may_go_on))


def _reported(thread_id: str, seq: int | None, result: Result) -> Result:
    metrics.deliveries.labels(result.outcome).inc()
    log.info("pass.delivered", thread=thread_id, seq=seq, outcome=result.outcome)
    return result


def _begin(delivery: Delivery) -> Begun | Finished | Outcome:
    """Begins with one token for all tries: after a lost reply the repetition finds the lease that it took."""
    token = uuid.uuid4()
    try:
        return begin(delivery, token)
    except DurableAlarmError as error:
        # Not whether the connection works: leaving the transaction, Django has already made a new one.
        if not is_disconnection(error.cause):
            raise
        connection.close()
        return begin(delivery, token)


def _answer(begun: Begun | Finished | Outcome, may_go_on: Callable[[], bool]) -> Result:
    if isinstance(begun, Outcome):
        return Result(outcome=begun)
    if isinstance(begun, Finished):
        return Result(outcome=Outcome.RAN, report=begun.report)
    with ExitStack() as until_the_end:
        return _run(begun, may_go_on, until_the_end)


def _run(begun: Begun, may_go_on: Callable[[], bool], until_the_end: ExitStack) -> Result:
    """Whatever stops this pass, from its first moment on, gives the thread back: no reaper would, its process lives."""
    work = PassWork(begun.lease, begun.generation if begun.actionable else None)
    wave: Wave | None = None
    try:
        failpoints.hit("maintenance:begin:after", begun.lease.thread_id)
        until_the_end.enter_context(renewal.kept(begun.lease))
        installed = hooks.current()
        begun = _prepare(work, begun, installed)
        wave = Wave(work, installed)
        if not installed.leave_the_database:
            # No hook has its turn between the head and finish, so the settlement may finish the pass.
            work.conclude = partial(_conclude, begun, may_go_on)
        done = _body(work, begun, installed, wave)
        finished = done.finished or _finish(begun, done, may_go_on)
    except INTERRUPTIONS as stopped:
        return _interrupted(begun, wave, stopped)
    except OwnershipLost as lost:
        # To another pass, or to the next one in place, if the runtime wrote on after a commit whose reply was lost.
        released = _let_go(begun, wave, lost.message, outcome=Outcome.FAILED, backoff=True)
        return Result(outcome=Outcome.FAILED if released else Outcome.LEASE_LOST, error=lost.message, failed=released)
    except ThreadParked as parked:
        return _parked(begun, wave, parked)
    except Exception as error:  # noqa: BLE001 - every failure is recorded, redacted, and fails the task
        return _failed(begun, wave, error)
    if finished is None:
        return Result(outcome=Outcome.LEASE_LOST)
    return Result(outcome=Outcome.RAN, report=finished.report, next=finished.next)


def _prepare(work: PassWork, begun: Begun, installed: Hooks) -> Begun:
    """Tells the sinks that want it which generation is being certified; adopts the newest that can be."""
    sinks = [sink for sink in installed.sinks if sink.wants_generation]
    if not sinks or not begun.actionable or begun.raced:
        return begun
    # Race closed: a mutation between begin and here. The snapshot is taken again under the lock: what committed
    # is visible and may be certified too, what is in flight certifies nothing.
    with alarm_operation(PREPARE_GENERATION), transaction.atomic(durable=True):
        locked = rows.lock(work.thread_id, PREPARE_GENERATION)
        if locked is None or not lease.is_held(locked, begun.lease):
            raise OwnershipLost("the thread was taken over before its generation was prepared")
        if locked.row.has_mutation_in_flight(locked.now):
            return replace(begun, raced=True)
        work.generation = locked.row.dirty
        for sink in sinks:
            with _port(PublicationFailed, "preparing the generation"):
                sink.prepare_generation(work, locked.row.dirty)
        return replace(begun, generation=locked.row.dirty)


def _body(work: PassWork, begun: Begun, installed: Hooks, wave: Wave) -> Done:
    """Projection, publication, then canonical work unless a sink holds it back; the wave runs beside all of it."""
    projection_failure = _backfill(work, installed)
    try:
        done = _publication_and_canonical_work(work, begun, installed)
        wave.join()
    except WakefulError as failure:
        if projection_failure is not None:
            failure.also(projection_failure)
        raise
    if projection_failure is not None:
        raise projection_failure
    return done


def _publication_and_canonical_work(work: PassWork, begun: Begun, installed: Hooks) -> Done:
    _publish(work, begun, installed)
    done = Done(ran=False)
    if begun.actionable and not _is_gated(work, installed):
        done = _canonical_work(work, begun, installed)
        _publish(work, begun, installed)
    return done


def _backfill(work: PassWork, installed: Hooks) -> ProjectionFailed | None:
    """One batch of the projection. Its failure is kept: canonical work has its turn first."""
    if installed.projection.inert:
        return None
    try:
        with _port(ProjectionFailed, "the projection backfill"):
            installed.projection.drain_due(work)
    except ProjectionFailed as failure:
        return failure
    return None


def _publish(work: PassWork, begun: Begun, installed: Hooks) -> None:
    """Every sink in an actionable pass; in a caught-up one only those with something due."""
    for sink in installed.sinks:
        work.checkpoint()
        with _port(PublicationFailed, "a publication sink"):
            due = begun.actionable or _has_come(sink.pending_deadline(work.thread_id))
            if due:
                sink.drain(work, work.thread_id)


def _has_come(deadline: object) -> bool:
    return deadline is not None and deadline <= clock.now()  # type: ignore[operator]


def _is_gated(work: PassWork, installed: Hooks) -> bool:
    """Whether a sink that gates execution still owes something, due now or later."""
    with _port(PublicationFailed, "a publication deadline"):
        return installed.gate_deadline(work.thread_id) is not None


def _canonical_work(work: PassWork, begun: Begun, installed: Hooks) -> Done:
    """Recovery of everything nonterminal, strictly before any claim; then one head attempt."""
    work.checkpoint()
    if begun.head is not None:
        work.reports = begun.head.reports
    else:
        with _port(RuntimeFailed, "recovery"):
            work.reports = installed.runtime.run_recovery(work)
        work.checkpoint()
    with _port(RuntimeFailed, "the head attempt"):
        settled = begun.head.run(work) if begun.head is not None else installed.runtime.process_head(work)
    return Done(ran=True, reports=work.reports, settled=settled, finished=work.finished)


def _conclude(
    begun: Begun, may_go_on: Callable[[], bool], locked: Locked, reports: Sequence[RecoveryReport], tally: Tally
) -> Finished:
    """Finish as the end of the transaction in which the head settled; with the begin of the next head, if it can."""
    failpoints.hit("maintenance:finish:before", begun.lease.thread_id)
    done = Done(ran=True, reports=reports, settled=tally.settled, residue=tally.residue)
    with alarm_operation(FINISH_PASS):
        finished = finish.finish_locked(locked, begun, done, in_place=_in_place(may_go_on))
    following = finished.next
    if following is None or not following.actionable or tally.begin_next is None:
        return finished
    head = tally.begin_next(following.lease.thread_id, following.lease.epoch)
    return replace(finished, next=replace(following, head=head))


def _in_place(may_go_on: Callable[[], bool]) -> bool:
    return may_go_on() and not drain.requested()


def _finish(begun: Begun, done: Done, may_go_on: Callable[[], bool]) -> Finished | None:
    """Finish, tried again within the lease if the row was held too long by another transaction."""
    in_place = _in_place(may_go_on)
    for _ in range(FINISH_TRIES - 1):
        try:
            return finish.finish(begun, done, in_place=in_place)
        except DurableAlarmError as error:
            if not isinstance(error.cause, OperationalError):
                raise
            connections.freshen()
    return finish.finish(begun, done, in_place=in_place)


FINISH_TRIES = 3


def _interrupted(begun: Begun, wave: Wave | None, stopped: BaseException) -> Result:
    """Gives the thread back without settling anything. Only the deadline counts as a failure and backs off."""
    if isinstance(stopped, KeyboardInterrupt | SystemExit):
        _let_go(begun, wave, "the process was told to stop", outcome=Outcome.INTERRUPTED, backoff=False)
        raise stopped
    past_deadline = isinstance(stopped, SoftTimeLimitExceeded) or described(stopped).endswith(PASS_DEADLINE)
    text = f"{PASS_DEADLINE}: the pass was stopped and its thread given back" if past_deadline else described(stopped)
    released = _let_go(begun, wave, text, outcome=Outcome.INTERRUPTED, backoff=past_deadline)
    return Result(outcome=Outcome.INTERRUPTED if released else Outcome.LEASE_LOST, error=text, failed=past_deadline)


def _parked(begun: Begun, wave: Wave | None, parked: ThreadParked) -> Result:
    """Gives the thread back and holds it for a person. Monitoring learns it from the outcome: nothing has failed."""
    log.warning("pass.parked", thread=begun.lease.thread_id, reason=parked.message)
    released = _let_go(begun, wave, parked.message, outcome=Outcome.PARKED, backoff=False, park=True)
    return Result(outcome=Outcome.PARKED if released else Outcome.LEASE_LOST, error=parked.message)


def _failed(begun: Begun, wave: Wave | None, error: Exception) -> Result:
    text = described(error)
    log.error("pass.failed", thread=begun.lease.thread_id, error=text, exception=traced(error))
    released = _let_go(begun, wave, text, outcome=Outcome.FAILED, backoff=True)
    return Result(outcome=Outcome.FAILED if released else Outcome.LEASE_LOST, error=text, failed=True)


def _let_go(begun: Begun, wave: Wave | None, text: str, *, outcome: Outcome, backoff: bool, park: bool = False) -> bool:
    """Releases the lease if the body has really stopped; otherwise its expiry decides."""
    if not _stop(wave):
        log.warning("wave.not_stopped", thread=begun.lease.thread_id)
        return False
    try:
        connections.freshen()
        return finish.fail(begun, text, outcome=outcome, backoff=backoff, park=park)
    except DurableAlarmError as error:
        log.warning("pass.not_released", thread=begun.lease.thread_id, error=error.message)
        return False


def _stop(wave: Wave | None) -> bool:
    return wave is None or wave.cancel()


@contextmanager
def _port(kind: type[WakefulError], what: str) -> Iterator[None]:
    """Gives a hook's failure its type and a text without the foreign one; lets our own and interruptions pass."""
    try:
        yield
    except (*INTERRUPTIONS, WakefulError):
        raise
    except Exception as error:
        raise kind(f"{what} failed: {described(error)}") from error
