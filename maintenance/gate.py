"""The gate: every write of a thread's source data passes it, carrying a newer generation and an armed slot."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import structlog
from django.db import connection, transaction

from maintenance import alarm, dispatch, failpoints, hooks, hotpath, metrics, owner, rows, spans
from maintenance.conf import get_settings
from maintenance.errors import (
    ADVANCE_GENERATION,
    END_MUTATION,
    INTERRUPTIONS,
    DurableAlarmError,
    MutationRefused,
    UnsupportedSchema,
    alarm_operation,
    described,
    kind_of,
    traced,
)
from maintenance.models import MutationLease
from maintenance.ports import Publication

log = structlog.get_logger("wakeful.maintenance")

NO_DELAY = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What the body of a mutation may know: its thread, the generation it carries, the time after the lock."""

    thread_id: str
    generation: int
    now: datetime


@contextmanager
def mutation(thread_id: str, *, wake: bool = True) -> Iterator[Mutation]:
    """A transaction over one thread: generation, alarm and body commit together or not at all.

    The first statement locks the thread's row, so the bodies of two mutations of one thread never overlap. By
    default the next pass is due at once; `wake=False` leaves it `minimum` (50 ms) to gather more. Inside an outer
    `atomic` everything joins it. After commit the hint goes out, and sinks marked `inline` get one drain.

    Raises `DurableAlarmError` (the body did not run), `MutationRefused` for a second thread in one transaction.
    """
    failpoints.hit("maintenance:dirty:before", thread_id)
    # Race closed: a pass that acknowledged between the body's commit and a later bump would lose the wake.
    with spans.span("maintenance.mutation", thread=thread_id, mode="atomic") as span, transaction.atomic():
        _claim_transaction(thread_id)
        untold: list[Publication] = []
        bumped = bump(thread_id, NO_DELAY if wake else get_settings().minimum, untold)
        span.note(generation=bumped.generation)
        failpoints.hit("maintenance:dirty:after", thread_id)
        failpoints.hit("maintenance:mutation:armed", thread_id)
        yield Mutation(thread_id=thread_id, generation=bumped.generation, now=bumped.now)
        untold += _invalidate(thread_id)
        failpoints.hit("maintenance:mutation:finished", thread_id)
    metrics.mutations.labels("atomic").inc()


def bump(thread_id: str, delay: timedelta, untold: Collection[Publication] = ()) -> hotpath.Bumped:
    """Advances the generation and keeps or pulls the slot to `now + delay`, in the caller's transaction.

    Registers the inline drains and the hint for after the commit. `untold`: the sinks that are not drained, because
    telling them failed; filled by the caller until then. Raises `DurableAlarmError`.
    """
    with alarm_operation(ADVANCE_GENERATION):
        bumped = _fused_bump(thread_id, delay) if hotpath.serves() else _plain_bump(thread_id, delay)
    _drain_inline_after_commit(thread_id, untold)
    if bumped.hinted:
        dispatch.after_commit(
            dispatch.hint_for(thread_id, bumped.alarm_seq, bumped.alarm_at, bumped.now, trigger="alarm")
        )
    return bumped


def _fused_bump(thread_id: str, delay: timedelta) -> hotpath.Bumped:
    bumped = hotpath.bump(thread_id, delay) or _first_bump(thread_id, delay) or hotpath.bump(thread_id, delay)
    if bumped is None:
        raise UnsupportedSchema(ADVANCE_GENERATION, "the row has a schema version that this release cannot read")
    return bumped


def _first_bump(thread_id: str, delay: timedelta) -> hotpath.Bumped | None:
    """The row's first mutation makes it at generation 2: the bootstrap's 1, plus 1."""
    now = rows.insert(thread_id, dirty=2, delay=delay, hinted=True)
    return None if now is None else hotpath.Bumped(2, now + delay, 1, True, now)


def _plain_bump(thread_id: str, delay: timedelta) -> hotpath.Bumped:
    locked = rows.lock(thread_id, ADVANCE_GENERATION)
    if locked is None:
        return _first_bump(thread_id, delay) or _plain_bump(thread_id, delay)
    row, seq = locked.row, locked.row.alarm_seq
    row.dirty += 1
    alarm.keep_earlier(row, locked.now + delay)
    # A kept slot is somebody else's to hand over, unless that was so long ago that the message must be lost.
    hint = dispatch.mark(locked) if row.alarm_seq != seq or dispatch.is_stale(row, locked.now) else None
    locked.save()
    return hotpath.Bumped(row.dirty, row.alarm_at or locked.now, row.alarm_seq, hint is not None, locked.now)


@contextmanager
def prearmed_mutation(thread_id: str, label: str) -> Iterator[Mutation]:
    """For a body that cannot be one transaction, because it calls another system.

    Generation, alarm (at `now + minimum`) and a `MutationLease` are committed *before* the body; while it runs no
    pass acknowledges the thread. Each commit inside the body goes through `mutation`. A crash leaves the thread
    dirty and armed, and the lease row expires after `MUTATION_LEASE_TTL_MS`.

    Raises `MutationRefused` inside `atomic`: the pre-arming would not be durable before the body; `DurableAlarmError`
    if arming or ending fails. What the body raises is raised, with a note if the end failed as well.
    """
    if _outermost_block() is not None:
        raise MutationRefused(
            "prearmed_mutation() must not run inside transaction.atomic() or under ATOMIC_REQUESTS: its alarm has "
            "to be committed before the body. Use mutation(), or decorate the view with non_atomic_requests."
        )
    token = uuid.uuid4()
    with spans.span("maintenance.mutation", thread=thread_id, mode="prearmed", label=label[:100]) as span:
        armed = _prearm(thread_id, label, token)
        span.note(generation=armed.generation)
        try:
            failpoints.hit("maintenance:mutation:armed", thread_id)
            yield armed
            _drain_inline(thread_id, _invalidate(thread_id))
            failpoints.hit("maintenance:mutation:finished", thread_id)
        except BaseException as failed:
            _end_after(failed, thread_id, token)
            raise
        _end(thread_id, token)
    metrics.mutations.labels("prearmed").inc()


def _prearm(thread_id: str, label: str, token: uuid.UUID) -> Mutation:
    failpoints.hit("maintenance:dirty:before", thread_id)
    settings = get_settings()
    # Race closed: a pass that begins before this commit sees the old generation, one that begins after it sees
    # both the newer generation and the mutation in flight, never one without the other.
    with alarm_operation(ADVANCE_GENERATION), transaction.atomic(durable=True):
        bumped = bump(thread_id, settings.minimum)
        expires = bumped.now + settings.mutation_lease_ttl
        MutationLease.objects.create(
            token=token,
            thread_id=thread_id,
            generation=bumped.generation,
            label=label[:100],
            owner=owner.current(),
            started_at=bumped.now,
            expires_at=expires,
        )
        rows.extend_mutating(thread_id, expires)
    failpoints.hit("maintenance:dirty:after", thread_id)
    return Mutation(thread_id=thread_id, generation=bumped.generation, now=bumped.now)


def _end_after(failed: BaseException, thread_id: str, token: uuid.UUID) -> None:
    """The end after a body that failed: its own failure is told beside the body's and does not take its place.

    The thread stays dirty and armed then, and the lease expires.
    """
    try:
        _end(thread_id, token)
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - the caller has to see why the body failed
        log.error("mutation.end_failed", thread=thread_id, exception=traced(error))
        failed.add_note(f"The end of the pre-armed mutation failed too: {described(error)}.")


def _end(thread_id: str, token: uuid.UUID) -> None:
    """Removes the lease row and wakes; if it had expired, bumps again, because a pass may have acknowledged."""
    # Race closed: a finish that runs between the removal and the wake would see no mutation and no request.
    with alarm_operation(END_MUTATION), transaction.atomic(durable=True):
        locked = rows.lock(thread_id, END_MUTATION)
        if locked is None:
            raise DurableAlarmError(END_MUTATION, "the thread's row is gone")
        removed, _ = MutationLease.objects.filter(token=token, expires_at__gt=locked.now).delete()
        MutationLease.objects.filter(token=token).delete()
        live = MutationLease.objects.filter(thread_id=thread_id, expires_at__gt=locked.now)
        locked.row.mutating_until = max(live.values_list("expires_at", flat=True), default=None)
        if not removed:
            locked.row.dirty += 1
            metrics.mutation_lease_lost.inc()
        if locked.row.is_dirty:
            alarm.keep_earlier(locked.row, locked.now)
        hint = dispatch.mark(locked)
        locked.save()
        dispatch.after_commit(hint)


def _invalidate(thread_id: str) -> list[Publication]:
    """Tells the sinks, inside the transaction or the lease: a fast pass could clear the slot before they know.

    Returns those for which that failed; the newer generation brings them a pass.
    """
    untold: list[Publication] = []
    for sink in hooks.current().sinks:
        try:
            # Race closed: a failing sink must not take the body with it, so it fails alone in its savepoint.
            with transaction.atomic():
                sink.invalidate(thread_id)
        except INTERRUPTIONS:
            raise
        except Exception as error:  # noqa: BLE001 - a committed operation is never failed by its publication
            log.error("publication.deferred", thread=thread_id, kind=kind_of(error))
            untold.append(sink)
    return untold


def _drain_inline_after_commit(thread_id: str, untold: Collection[Publication]) -> None:
    if any(sink.inline for sink in hooks.current().sinks):
        transaction.on_commit(partial(_drain_inline, thread_id, untold))


def _drain_inline(thread_id: str, untold: Collection[Publication]) -> None:
    """One drain of the local sinks. A failure is logged once and swallowed: the operation has committed."""
    for sink in hooks.current().sinks:
        if not sink.inline or sink in untold:
            continue
        try:
            sink.drain(None, thread_id)
        except INTERRUPTIONS:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            log.error("publication.deferred", thread=thread_id, kind=kind_of(error))


@dataclass(frozen=True, slots=True)
class _Touched:
    """Left among the transaction's commit hooks: says which thread this transaction belongs to.

    Django forgets the hooks of a rolled back savepoint, so the note lives exactly as long as the bump.
    """

    thread_id: str
    block: object

    def __call__(self) -> None:
        """Registered first, so run first: the commit is done, its hooks are not."""
        failpoints.hit("commit:after", self.thread_id)


def _claim_transaction(thread_id: str) -> None:
    """Refuses a second thread in one transaction: two threads locked in two orders deadlock."""
    block = _outermost_block()
    touched = {
        hook.thread_id for _, hook, *_ in connection.run_on_commit if isinstance(hook, _Touched) and hook.block is block
    }
    if touched - {thread_id}:
        raise MutationRefused(
            "one transaction touches one thread: this one has already changed another. "
            "Commit first, or send the second thread a message."
        )
    if not touched:
        transaction.on_commit(_Touched(thread_id, block))


def _outermost_block() -> object | None:
    """The block that will commit: the outermost `atomic`, leaving out those that a Django TestCase holds."""
    blocks = connection.atomic_blocks
    return next((block for block in blocks if not getattr(block, "_from_testcase", False)), None)
