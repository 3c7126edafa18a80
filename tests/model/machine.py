"""The whole protocol as a state machine: real code, real rows, a still clock, and every fault that a network has.

Messages are a multiset that may lose, double, delay and hasten what it holds. Passes go step by step, may stand still
while their lease expires, and come back as zombies. Whoever is killed does not clean up.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from maintenance import alarm, ensure, finish, gate, hooks, operations, passes, reaper, renewal, sweep
from maintenance.delivery import Delivery, Outcome
from maintenance.errors import DurableAlarmError, OwnershipLost, PassInterrupted
from maintenance.finish import Done
from maintenance.reaper import Observed
from maintenance.work import PassWork
from tests.model import ledger
from tests.model.ledger import Letter
from tests.model.scene import THREAD, Held, Scene, owns, pick, stored

WHICH = st.sampled_from([0, 0, 0, 1, 2, 5])
"""Which of several, the newest first."""
STEPS = st.sampled_from([0.02, 0.05, 0.1, 1, 5, 31, 61])
"""Seconds: the tolerance, the least delay, the base, a scan, the grace, more than a lease, than a mutation lease."""
REPLY = st.sampled_from(["heard", "heard", "heard", "asked again", "lost"])
SELDOM = st.sampled_from([False, False, False, True])
AHEAD = st.sampled_from([None, None, 0.03, 2, 10])


def _sweep() -> None:
    sweep.sweep()


def _ensure() -> None:
    ensure.ensure_alarm(THREAD)


def _cancel() -> None:
    with suppress(DurableAlarmError):
        alarm.cancel(THREAD)


class Rejected(Exception):
    """The caller's own error: its transaction is rolled back."""


class ProtocolMachine(Scene):
    """Every rule is one thing that somebody does; the invariants are checked after each."""

    # --- mutations ----------------------------------------------------------------------------------

    @rule(ahead=AHEAD, asks=st.booleans(), wake=st.booleans())
    def submit(self, ahead: float | None, asks: bool, wake: bool) -> None:
        with gate.mutation(THREAD, wake=wake) as made:
            ledger.add_job(THREAD, due_at=made.now + _seconds(ahead) if ahead else None, asks=asks)
        self.stimuli += 1

    @rule()
    def submit_in_vain(self) -> None:
        """The body raises."""
        sent, before = list(self.messages), stored()
        with suppress(Rejected), gate.mutation(THREAD):
            ledger.add_job(THREAD)
            raise Rejected
        assert (self.messages, stored()) == (sent, before), "a rolled back mutation left something behind"

    @precondition(lambda self: self.asking)
    @rule(which=WHICH)
    def answer(self, which: int) -> None:
        with gate.mutation(THREAD):
            ledger.answer(pick(self.asking, which).pk)
        self.stimuli += 1

    @precondition(lambda self: self.asking)
    @rule(which=WHICH, ahead=AHEAD)
    def post(self, which: int, ahead: float | None) -> None:
        job = pick(self.asking, which)
        with gate.mutation(THREAD) as made:
            Letter.objects.create(thread_id=THREAD, job_id=job.pk, due_at=made.now + _seconds(ahead or 0))
        self.stimuli += 2

    @rule()
    def prearm(self) -> None:
        token = uuid.uuid4()
        gate._prearm(THREAD, "a call", token)
        self.mutations.append(token)
        self.stimuli += 1

    @precondition(lambda self: self.mutations)
    @rule(which=WHICH, is_killed=st.booleans())
    def end(self, which: int, is_killed: bool) -> None:
        token = pick(self.mutations, which)
        self.mutations.remove(token)
        if not is_killed:
            gate._end(THREAD, token)
            self.stimuli += 2

    # --- passes -------------------------------------------------------------------------------------

    @precondition(lambda self: self.messages)
    @rule(which=WHICH, fails=SELDOM)
    def deliver(self, which: int, fails: bool) -> None:
        self.runtime.fails = fails
        self.run(self.arriving(which))
        self.runtime.fails = False

    @precondition(lambda self: self.due_at())
    @rule()
    def come_in_time(self) -> None:
        """Nothing goes wrong for once: the slot's own message comes when it is due."""
        self.run(self.in_time())

    @precondition(lambda self: self.due_at())
    @rule()
    def begin_in_time(self) -> None:
        self.start(self.in_time())

    @precondition(lambda self: self.messages)
    @rule(which=WHICH)
    def begin(self, which: int) -> None:
        self.start(self.arriving(which))

    @precondition(lambda self: self.row)
    @rule()
    def force(self) -> None:
        self.stimuli += 1
        self.start(Delivery(thread_id=THREAD, forced=True))

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def run_head(self, which: int) -> None:
        """Recovery and the head attempt, once in each pass that has something to do."""
        held = pick(self.held, which)
        if held.done is not None or not held.begun.actionable:
            return
        is_owner = owns(held)
        try:
            held.done = passes._canonical_work(
                PassWork(held.begun.lease, held.begun.generation), held.begun, hooks.current()
            )
        except (OwnershipLost, PassInterrupted):
            assert not is_owner, "the owner of the thread was taken for a zombie"
            self.held.remove(held)
        else:
            assert is_owner, "A5: a zombie has worked"

    @precondition(lambda self: self.held)
    @rule(which=WHICH, is_gated=SELDOM, goes_on=st.booleans(), reply=REPLY)
    def finish(self, which: int, is_gated: bool, goes_on: bool, reply: str) -> None:
        held = pick(self.held, which)
        if held.done is None and held.begun.actionable and not is_gated:
            self.run_head(which)
        if held in self.held:
            self._finish(held, goes_on, reply)

    def _finish(self, held: Held, goes_on: bool, reply: str) -> None:
        """Much may happen before the worker runs what it has begun in place; or it never hears that it has."""
        self.held.remove(held)
        is_owner, done = owns(held), held.done or Done(ran=False)
        finished = finish.finish(held.begun, done, in_place=goes_on)
        assert (finished is not None) == is_owner, "A5: only the owner ends its pass"
        following = finished.next if finished else None
        if following is None:
            return
        if reply == "lost":
            self.stimuli += 1
            assert finish.fail(held.begun, "no reply", outcome=Outcome.FAILED, backoff=True)
            return
        if reply == "asked again":
            again = finish.finish(held.begun, done, in_place=goes_on)
            assert again is not None
            assert again.next is not None
            assert again.next.lease.token == following.lease.token, "another pass was found"
            following = again.next
        self.held.append(Held(following))

    @precondition(lambda self: self.held)
    @rule(which=WHICH, how=st.sampled_from(["fails", "drains", "is killed"]))
    def break_off(self, which: int, how: str) -> None:
        held = pick(self.held, which)
        self.held.remove(held)
        self.stimuli += 2
        if how == "is killed":
            self.dead.append(held.begun.lease.token)
            return
        is_owner = owns(held)
        released = finish.fail(held.begun, how, outcome=Outcome.FAILED, backoff=how == "fails")
        assert released == is_owner, "A5: only the owner ends its pass"

    @precondition(lambda self: self.dead)
    @rule(which=WHICH)
    def reap(self, which: int) -> None:
        token, row = pick(self.dead, which), stored()
        is_held = row is not None and row["lease_token"] == token
        released = reaper.release_of_the_dead(Observed(THREAD, token, "the dead"))
        assert released == is_held, "A5: the reaper released what it had not observed"

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def renew(self, which: int) -> None:
        held = pick(self.held, which)
        assert renewal.renew(held.begun.lease) == owns(held)

    # --- time, messages, people ---------------------------------------------------------------------

    @rule(seconds=STEPS)
    def wait(self, seconds: float) -> None:
        self.frozen.at += _seconds(seconds)
        self.stimuli += 2 if self.row else 0

    @precondition(lambda self: self.messages)
    @rule(which=WHICH, doubles=st.booleans())
    def disturb(self, which: int, doubles: bool) -> None:
        message = pick(self.messages, which)
        if doubles:
            self.messages.append(message)
        else:
            self.messages.remove(message)

    @rule(how=st.sampled_from([_sweep, _ensure, _cancel]))
    def tend(self, how: Callable[[], None]) -> None:
        how()
        self.stimuli += 1

    @precondition(lambda self: self.row)
    @rule(action=st.sampled_from([operations.pause, operations.resume, operations.release, operations.wake]))
    def operate(self, action: Callable[..., bool]) -> None:
        action(THREAD, actor="a person", reason="to see what happens")
        self.stimuli += 1


def _seconds(seconds: float) -> timedelta:
    return timedelta(milliseconds=round(seconds * 1000))
