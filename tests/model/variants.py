"""The protocol, broken on purpose: each of these patches the real code into a form that must be caught."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

from maintenance import begin, clock, decision, dispatch, finish, gate, hooks, hotpath, lease, start
from maintenance.delivery import Begun, Delivery, Outcome
from maintenance.finish import Done, Finished
from maintenance.lease import Lease
from maintenance.models import MutationLease, ThreadMaintenance
from maintenance.ports import NOTHING_LEFT, Residue, Work
from maintenance.rows import Locked
from tests.model.ledger import Job, JobLedger, Sink

Variant = Callable[[], AbstractContextManager[None]]


@contextmanager
def acknowledging_the_current_generation() -> Iterator[None]:
    """Finish raises `processed` to what is dirty now, not to what begin saw."""

    def acknowledged(seen: decision.Seen) -> int:
        return seen.processed if seen.residue is None or seen.raced else seen.dirty

    with mock.patch.object(decision, "_acknowledged", acknowledged):
        yield


@contextmanager
def publishing_before_commit() -> Iterator[None]:
    """The hint goes out inside the transaction that it speaks of."""

    def at_once(hint: dispatch.Hint | None) -> None:
        if hint is not None:
            dispatch.publish_or_forget(hint)

    with mock.patch.object(dispatch, "after_commit", at_once):
        yield


@contextmanager
def fencing_with_a_plain_select() -> Iterator[None]:
    """The writer looks at the lease and does not lock it."""

    def prove(held: Lease, *, progress: bool) -> bool:
        row = ThreadMaintenance.objects.filter(pk=held.thread_id, lease_token=held.token, lease_epoch=held.epoch)
        return row.exists()

    with mock.patch.object(lease, "_prove", prove):
        yield


@contextmanager
def comparing_the_epoch_alone() -> Iterator[None]:
    """A lease is known by its epoch, which a database crash can give to two passes."""

    def prove(held: Lease, *, progress: bool) -> bool:
        row = ThreadMaintenance.objects.filter(pk=held.thread_id, lease_epoch=held.epoch)
        return row.select_for_update().first() is not None

    def is_held(locked: Locked, held: Lease) -> bool:
        return locked.row.lease_token is not None and locked.row.lease_epoch == held.epoch

    with mock.patch.object(lease, "_prove", prove), mock.patch.object(lease, "is_held", is_held):
        yield


@contextmanager
def comparing_nothing() -> Iterator[None]:
    """Whoever once began may go on for ever."""
    with (
        mock.patch.object(lease, "_prove", return_value=True),
        mock.patch.object(lease, "is_held", return_value=True),
    ):
        yield


@contextmanager
def clearing_without_a_scan() -> Iterator[None]:
    """Finish takes for granted that the head attempt left nothing."""
    with mock.patch.object(JobLedger, "scan_nonterminal", return_value=NOTHING_LEFT):
        yield


@contextmanager
def scanning_before_the_lock() -> Iterator[None]:
    """Finish decides from a scan that it made before it held the row."""
    in_order = finish.finish

    def early(begun: Begun, done: Done, *, in_place: bool) -> Finished | None:
        stale = _scanned(begun, done)
        with mock.patch.object(JobLedger, "scan_nonterminal", return_value=stale):
            return in_order(begun, done, in_place=in_place)

    with mock.patch.object(finish, "finish", early):
        yield


@contextmanager
def scanning_early_and_acknowledging_the_current_generation() -> Iterator[None]:
    """Both at once: scan, submit, finish."""
    with scanning_before_the_lock(), acknowledging_the_current_generation():
        yield


@contextmanager
def trusting_the_head_that_the_lock_statement_read() -> Iterator[None]:
    """Begin locks the row and looks for a head in one statement; finding none, it acknowledges."""
    seen, begin_it = threading.local(), begin._start
    head = f"SELECT 1 FROM {Job._meta.db_table} AS j WHERE j.thread_id = locked.thread_id AND j.state = 'ready'"

    def lock(thread_id: str, *, relaxed: bool) -> tuple[ThreadMaintenance, datetime] | None:
        now_sql, parameters = clock.expression()
        statement = hotpath._LOCK.format(clock=now_sql, relax=f", EXISTS ({head})")
        *values, now, seen.head = hotpath._one(statement, [thread_id, *parameters]) or (None, None)
        return (hotpath._row(tuple(values)), now) if values else None

    def hasty(locked: Locked, delivery: Delivery, token: uuid.UUID) -> Begun | Finished | Outcome:
        if seen.head:
            return begin_it(locked, delivery, token)
        locked.row.processed = locked.row.dirty
        return finish.caught_up_at_once(locked, None, trigger=delivery.trigger, due_at=locked.row.alarm_at)

    with mock.patch.object(hotpath, "lock", lock), mock.patch.object(begin, "_start", hasty):
        yield


@contextmanager
def letting_timers_come_without_a_bump() -> Iterator[None]:
    """A timer that has come is cleared, and announces nothing."""

    def come(locked: Locked) -> None:
        if locked.row.timer_at is not None and locked.row.timer_at <= locked.now:
            locked.row.timer_at = None

    with mock.patch.object(start, "let_timer_come", come):
        yield


@contextmanager
def forgetting_the_timer_in_a_caught_up_pass() -> Iterator[None]:
    """A pass that finds nothing to do clears the slot, and the timer with it."""
    in_order = finish.caught_up_at_once

    def forgetful(locked: Locked, *arguments: Any, **names: Any) -> Finished:
        locked.row.timer_at = None
        return in_order(locked, *arguments, **names)

    with mock.patch.object(finish, "caught_up_at_once", forgetful):
        yield


@contextmanager
def ending_without_a_look_at_the_expiry() -> Iterator[None]:
    """The end of a pre-armed mutation takes its lease for alive, whatever the time is."""

    def end(thread_id: str, token: uuid.UUID) -> None:
        MutationLease.objects.filter(token=token).update(expires_at=clock.now() + timedelta(hours=1))
        in_order(thread_id, token)

    in_order = gate._end
    with mock.patch.object(gate, "_end", end):
        yield


class GenerationSink(Sink):
    """Its cursor is a generation: what a pass appends under its own generation is behind the cursor at once."""

    published = 0

    def drain(self, work: Work | None, thread_id: str) -> None:
        generation = _generation(thread_id)
        if self.published != generation:
            super().drain(work, thread_id)
            self.published = generation

    def pending_deadline(self, thread_id: str) -> datetime | None:
        return None if self.published == _generation(thread_id) else clock.now()


def _generation(thread_id: str) -> int:
    return ThreadMaintenance.objects.values_list("dirty", flat=True).get(pk=thread_id)


def _scanned(begun: Begun, done: Done) -> Residue:
    if not done.ran:
        return NOTHING_LEFT
    return hooks.current().ledger.scan_nonterminal(begun.lease.thread_id, done.reports)
