"""The operations of the protocol, and the worlds in which any two of them may meet."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from maintenance import alarm, clock, ensure, finish, gate, hooks, lease, passes, reaper, renewal, sweep
from maintenance import begin as begin_transaction
from maintenance.clock import FrozenClock
from maintenance.delivery import Begun, Delivery
from maintenance.errors import OwnershipLost
from maintenance.finish import Done
from maintenance.models import ThreadMaintenance
from maintenance.reaper import Observed
from maintenance.testing import deliver
from maintenance.work import PassWork
from tests.model import ledger
from tests.model.invariants import Watched

THREAD = "t"
LONG = timedelta(seconds=61)
"""Longer than a lease and than a mutation lease."""
MAX_CALM_PASSES = 12

Run = Callable[["World"], object]


@dataclass
class World:
    """The state in which two operations meet, and what they need to hold of it."""

    watched: Watched = field(default_factory=lambda: Watched(THREAD, certified={1}))
    held: Begun | None = None
    """A pass that has done its work and not ended yet."""
    done: Done = field(default_factory=lambda: Done(ran=True))
    mutation: uuid.UUID = field(default_factory=uuid.uuid4)
    """The pre-armed mutation that `end` ends; if it is in flight, then since before the pass began."""
    asking: int = 0
    """A job that waits for an answer."""

    @property
    def begun(self) -> Begun:
        assert self.held is not None
        return self.held


def new(ends: bool) -> World:
    """Nobody has looked at the thread yet: there is no row."""
    return World(watched=Watched(THREAD))


def hollow(ends: bool) -> World:
    """The slot is due and the row dirty, but the one job that is there waits for its answer."""
    return _committed(World(), ends, ready=False)


def due(ends: bool) -> World:
    """The slot is due, a job is open, nobody holds the thread."""
    return _committed(World(), ends)


def live(ends: bool) -> World:
    """A pass has done all that could be done and holds the thread; a job waits for its answer."""
    world = _committed(World(), ends)
    begun = begin_transaction.begin(Delivery(thread_id=THREAD), uuid.uuid4())
    assert isinstance(begun, Begun)
    work = PassWork(begun.lease, begun.generation)
    world.held = begun
    world.done = passes._canonical_work(work, begun, hooks.current())
    return world


def expired(ends: bool) -> World:
    """As `live`, but the pass has stood still for so long that its lease, and the mutation's, have expired."""
    world = live(ends)
    frozen = clock._clock
    assert isinstance(frozen, FrozenClock)
    frozen.at += LONG
    return world


def _committed(world: World, ends: bool, *, ready: bool = True) -> World:
    """One job to do and one that waits, at generation 2 of which 1 is acknowledged."""
    now = clock.now()
    ThreadMaintenance.objects.create(
        thread_id=THREAD, dirty=2, processed=1, alarm_at=now, alarm_seq=1, hint_seq=1, hint_at=now, hint_attempts=1
    )
    if ready:
        ledger.add_job(THREAD)
    world.asking = ledger.add_job(THREAD, state=ledger.WAITING, asks=True).pk
    world.watched.processed = 1
    if ends:
        gate._prearm(THREAD, "in flight", world.mutation)
    return world


WORLDS: dict[str, Callable[[bool], World]] = {
    "new": new,
    "hollow": hollow,
    "due": due,
    "live": live,
    "expired": expired,
}
"""Each is told whether the pre-armed mutation of `end` is in flight; without need it would hide acknowledgements."""


def _mutation(world: World) -> object:
    with gate.mutation(THREAD):
        return ledger.add_job(THREAD)


def _answer(world: World) -> object:
    """An intent: it changes what recovery will decide, not the state that a scan reads."""
    with gate.mutation(THREAD):
        ledger.answer(world.asking)
    return None


def _begin(world: World) -> object:
    """Begins, if it may, and writes the first record of the pass."""
    begun = begin_transaction.begin(Delivery(thread_id=THREAD), uuid.uuid4())
    return _appended(begun.lease, ledger.ENTERED) if isinstance(begun, Begun) else begun


def _finish(world: World) -> object:
    return finish.finish(world.begun, world.done, in_place=False)


def _go_on(world: World) -> object:
    """Finishes, begins the next pass in place if it is due, and writes that one's first record."""
    finished = finish.finish(world.begun, world.done, in_place=True)
    return finished if finished is None or finished.next is None else _appended(finished.next.lease, ledger.ENTERED)


def _fail(world: World) -> object:
    return finish.fail(world.begun, "the pass failed", outcome="failed", backoff=True)


def _reap(world: World) -> object:
    held = world.begun.lease
    return reaper.release_of_the_dead(Observed(THREAD, held.token, "the dead"))


def _sweep(world: World) -> object:
    return sweep.sweep()


def _append(world: World) -> object:
    return _appended(world.begun.lease, ledger.APPENDED)


def _decide(world: World) -> object:
    """A fenced write that changes what recovery would decide, as the message wave makes it."""
    try:
        with lease.fenced(world.begun.lease, bump=True):
            ledger.answer(world.asking)
    except OwnershipLost as lost:
        return lost
    return None


def _prearm(world: World) -> object:
    return gate._prearm(THREAD, "meanwhile", uuid.uuid4())


def _end(world: World) -> object:
    """The last thing that the body did was outside of any gate: only its lease, or this end, announces it."""
    ledger.answer(world.asking)
    gate._end(THREAD, world.mutation)
    return None


def _pass(world: World) -> object:
    return passes.deliver(Delivery(thread_id=THREAD))


def _renew(world: World) -> object:
    return renewal.renew(world.begun.lease)


def _ensure(world: World) -> object:
    ensure.ensure_alarm(THREAD)
    return None


def _wake(world: World) -> object:
    return alarm.schedule_now(THREAD)


def _appended(held: lease.Lease, kind: str) -> object:
    try:
        with lease.fenced(held):
            ledger.append(held, kind)
    except OwnershipLost as lost:
        return lost
    return None


@dataclass(frozen=True)
class Kind:
    """An operation and the worlds in which it means something."""

    run: Run
    worlds: tuple[str, ...]


ANY = ("new", "hollow", "due", "live", "expired")
ROW = ("due", "live", "expired")
HELD = ("live", "expired")
KINDS: dict[str, Kind] = {
    "mutation": Kind(_mutation, ANY),
    "begin": Kind(_begin, ANY),
    "finish": Kind(_finish, HELD),
    "fail": Kind(_fail, HELD),
    "reap": Kind(_reap, HELD),
    "sweep": Kind(_sweep, ROW),
    "append": Kind(_append, HELD),
    "prearm": Kind(_prearm, ANY),
    "end": Kind(_end, ROW),
    "go on": Kind(_go_on, HELD),
    "answer": Kind(_answer, ("hollow", "live")),
    "decide": Kind(_decide, HELD),
    "pass": Kind(_pass, ("hollow", "due")),
    "renew": Kind(_renew, ("expired",)),
    "ensure": Kind(_ensure, ("new", "due")),
    "wake": Kind(_wake, ("due", "live")),
}
REQUIRED = ("mutation", "begin", "finish", "fail", "reap", "sweep", "append", "prearm", "end")
"""Every ordered pair of these meets in every world that means something to both; the others meet these."""


def calm(thread_id: str = THREAD) -> list[str]:
    """Lets every fault stop: whoever stood still is dead by now, and each slot that comes due gets its pass.

    Returns the outcomes of these passes.
    """
    frozen, outcomes = clock._clock, list[str]()
    assert isinstance(frozen, FrozenClock)
    frozen.at += LONG
    while len(outcomes) < MAX_CALM_PASSES:
        row = ThreadMaintenance.objects.filter(pk=thread_id).first()
        due_at = None if row is None else row.effective_due(frozen.at)
        if due_at is None:
            break
        frozen.at = max(frozen.at, due_at)
        outcomes.append(str(deliver(thread_id).outcome))
    return outcomes
