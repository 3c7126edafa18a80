"""When a worker's pool counts as stuck: the same task waits at every look, although a child is free."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest

from maintenance.pool import LOOKS, Watch

numbers = count()


@dataclass
class Job:
    """What billiard keeps of a task that was given to the pool."""

    taken: bool = False
    ended: bool = False
    _job: int = field(default_factory=lambda: next(numbers))

    def accepted(self) -> bool:
        return self.taken

    def ready(self) -> bool:
        return self.ended


@dataclass
class Pool:
    """Two children and the tasks that were given to them."""

    _processes: int = 2
    _cache: dict[int, Job] = field(default_factory=dict)

    def give(self, *jobs: Job) -> None:
        self._cache = {job._job: job for job in jobs}


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def watch(pool: Pool) -> Watch:
    return Watch(pool, patience=0)


def looks(watch: Watch, times: int = LOOKS) -> list[bool]:
    return [watch._is_stuck() for _ in range(times)]


def test_a_task_that_waits_beside_a_free_child_is_found_at_the_last_look(pool: Pool, watch: Watch) -> None:
    pool.give(Job(taken=True), Job())

    assert looks(watch) == [False] * (LOOKS - 1) + [True]


def test_a_task_may_wait_as_long_as_every_child_is_busy(pool: Pool, watch: Watch) -> None:
    pool.give(Job(taken=True), Job(taken=True), Job())

    assert not any(looks(watch, 2 * LOOKS))


def test_a_task_that_ended_before_anyone_took_it_waits_for_nothing(pool: Pool, watch: Watch) -> None:
    pool.give(Job(ended=True))

    assert not any(looks(watch))


def test_a_queue_that_moves_is_not_stuck_though_something_always_waits(pool: Pool, watch: Watch) -> None:
    for _ in range(2 * LOOKS):
        pool.give(Job())
        assert watch._is_stuck() is False


def test_looks_that_found_nothing_in_between_begin_again(pool: Pool, watch: Watch) -> None:
    pool.give(job := Job())
    looks(watch, LOOKS - 1)
    job.taken = True
    looks(watch, 1)
    job.taken = False

    assert looks(watch) == [False] * (LOOKS - 1) + [True]
