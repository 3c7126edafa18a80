"""Hundreds of mutations through a broker that loses, doubles, delays and reorders (L-49 and L-50, scaled; J7).

One process plays all parts, one step at a time, in an order drawn by a seed: what it finds can be found again.
`CHAOS_SEED=7 pytest …` draws another order.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from maintenance import sweep, tasks
from maintenance.delivery import Outcome
from maintenance.gate import mutation, prearmed_mutation
from maintenance.models import MutationLease, ThreadMaintenance
from maintenance.testing import Crash
from tests.factories import MS
from tests.jobs import Jobs, execute, table_of_jobs
from tests.lossy_transport import URL, Network, broken_network
from tests.marks import maintenance_database
from tests.publishing import publishing_to
from tests.stubs import Broken, fail

if TYPE_CHECKING:
    from celery import Celery
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from maintenance.ports import Work

pytestmark = maintenance_database

MUTATIONS = 500
THREADS = [f"t{number:02}" for number in range(20)]
WRITES_NOTHING = {Outcome.SUPERSEDED, Outcome.EARLY, Outcome.BUSY, Outcome.PAUSED, Outcome.CLEARED}

COLUMNS = [field.attname for field in ThreadMaintenance._meta.concrete_fields]

Rows = dict[str, dict[str, Any]]


def stored() -> Rows:
    """Every column of every row; read without the ORM, because every step reads it."""
    found = execute(f"SELECT {', '.join(COLUMNS)} FROM {ThreadMaintenance._meta.db_table}")
    return {values[0]: dict(zip(COLUMNS, values, strict=True)) for values in found}


@contextmanager
def unsafe_in_a_power_failure() -> Iterator[None]:
    """Commits without waiting for the disk: thousands of them, and no power fails here."""
    off, on = {
        "sqlite": ("PRAGMA synchronous=OFF", "PRAGMA synchronous=FULL"),
        "postgresql": ("SET synchronous_commit TO off", "RESET synchronous_commit"),
    }[connection.vendor]
    execute(off)
    try:
        yield
    finally:
        execute(on)


def unsettled() -> dict[str, int]:
    return dict(execute("SELECT thread_id, count(*) FROM tests_job WHERE settled = 0 GROUP BY thread_id"))


@dataclass
class World:
    """A web process, a worker, a sweeper and the time, each of which takes a step when the seed says so."""

    inbox: Any
    jobs: Jobs
    clock: FrozenClock
    network: Network
    chance: Random
    accepted: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    _before: Rows = field(default_factory=dict)
    """As the last step left them."""

    def live(self, mutations: int) -> None:
        """Takes steps until so many mutations were tried."""
        tried = 0
        while tried < mutations:
            step = self.chance.choices([self.mutate, self.work, self.sweep, self.wait], [4, 6, 1, 3])[0]
            tried += step == self.mutate
            self._take(step)

    def come_to_rest(self, *, steps: int = 20_000) -> None:
        """Only the worker, the sweeper and the time go on, until nothing is armed."""
        for _ in range(steps):
            if not ThreadMaintenance.objects.filter(alarm_at__isnull=False).exists():
                return
            self._take(self.chance.choices([self.work, self.sweep, self.wait], [6, 1, 3])[0])
        pytest.fail(f"still armed: {stored()}")

    def mutate(self) -> None:
        """One in ten bodies fails, one in ten is pre-armed; a third is not in a hurry."""
        thread_id, kind = self.chance.choice(THREADS), self.chance.random()
        number = self.accepted[thread_id] + 1
        before = self._before.get(thread_id, {"dirty": 1})
        try:
            if kind < 0.1:
                with mutation(thread_id):
                    self.jobs.insert(number, thread_id)
                    fail()
            elif kind < 0.2:
                with prearmed_mutation(thread_id, "submit"):
                    self.jobs.submit(number, thread_id)
            else:
                self.jobs.submit(number, thread_id, wake=kind < 0.7)
        except Broken:
            return
        self.accepted[thread_id] = number
        after = stored()[thread_id]
        assert after["dirty"] > before["dirty"], "A1: an accepted mutation carries a newer generation"
        assert after["alarm_at"] is not None, "A1: and an alarm"

    def work(self) -> None:
        """Takes one message, if one has arrived, and answers it; one in twenty passes dies on the way."""
        message = self.inbox.get(no_ack=True)
        if message is None:
            return
        args, kwargs, _ = message.payload
        self.jobs.on_settle, self.jobs.after_settling = self._perhaps_die, self._perhaps_race
        outcome = "died"
        with suppress(Crash):
            outcome = tasks.run_pass(*args, **kwargs)
        self.outcomes[outcome] += 1
        if outcome in WRITES_NOTHING:
            assert stored() == self._before, "A2: a delivery that does not run changes nothing"

    def sweep(self) -> None:
        sweep.sweep()

    def wait(self) -> None:
        self.clock.at += self.chance.choice([1, 20, 200, 1_000]) * MS

    def _perhaps_die(self, work: Work, number: int) -> None:
        if self.chance.random() < 0.05:
            raise Crash

    def _perhaps_race(self, work: Work) -> None:
        """A mutation that commits after the settlement and before the finish."""
        if self.chance.random() < 0.1:
            self.jobs.submit(self.accepted[work.thread_id] + 1, work.thread_id)
            self.accepted[work.thread_id] += 1

    def _take(self, step: Callable[[], None]) -> None:
        step()
        rows = stored()
        if rows != self._before:
            self._check(step.__name__, rows)
        self._before = rows

    def _check(self, step: str, rows: Rows) -> None:
        waiting = unsettled()
        for thread_id, row in rows.items():
            before = self._before.get(thread_id, row)
            told = f"after {step}: {row}"
            assert row["dirty"] == row["processed"] or row["alarm_at"] is not None, f"A1 {told}"
            assert before["processed"] <= row["processed"] <= row["dirty"], f"A3 {told}"
            assert before["lease_epoch"] <= row["lease_epoch"], f"A5 {told}"
            assert row["alarm_at"] == before["alarm_at"] or row["alarm_seq"] > before["alarm_seq"], f"A2 {told}"
            if row["processed"] == row["dirty"]:
                assert thread_id not in waiting, f"A3: acknowledged with work left {told}"
        assert execute("SELECT count(*) FROM tests_job WHERE settled > 1") == [(0,)], f"A5 after {step}"


@pytest.fixture(params=[int(os.environ.get("CHAOS_SEED", "20260813"))])
def world(
    request: pytest.FixtureRequest,
    celery_app: Celery,
    frozen: FrozenClock,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[World]:
    settings.MAINTENANCE = {"IN_PLACE_PASSES": 3, "IN_PLACE_MS": 60_000}
    caplog.set_level(logging.ERROR, "wakeful.maintenance")
    network = Network(seed=request.param, now=lambda: frozen.at)
    with (
        unsafe_in_a_power_failure(),
        table_of_jobs() as jobs,
        broken_network(network),
        publishing_to(celery_app, URL),
        celery_app.connection_for_read() as broker,
    ):
        inbox = celery_app.amqp.queues["maintenance"](broker.default_channel)
        yield World(inbox, jobs, frozen, network, Random(request.param))


def test_l49_whatever_the_broker_does_everything_is_settled_once_and_nothing_stays_armed(world: World) -> None:
    world.live(MUTATIONS)
    world.come_to_rest()

    settled = {thread_id: world.jobs.settled(thread_id) for thread_id in THREADS}
    assert settled == {thread_id: dict.fromkeys(range(1, world.accepted[thread_id] + 1), 1) for thread_id in THREADS}
    rows = stored().values()
    assert all(row["processed"] == row["dirty"] and row["lease_token"] is None for row in rows)
    assert not MutationLease.objects.exists()
    # The case is only worth its time if the broker was bad and the workers died.
    assert world.network.lost > 30
    assert world.network.doubled > 20
    assert world.outcomes["died"] > 5
    assert world.outcomes[Outcome.SUPERSEDED] > 20
    assert sum(world.accepted.values()) > 400
