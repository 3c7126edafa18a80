"""What Redis does to messages (redelivers, loses, evicts, falls silent) changes only when a pass runs.

Each test has a Redis of its own, so these cases run with PostgreSQL alone, whatever the broker of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from maintenance import status
from maintenance.dispatch import BREAKER_SECONDS
from maintenance.doctor import Level, broker
from maintenance.models import PassRun
from tests.process import evidence
from tests.process.board import PAUSE
from tests.process.harness import wait_until
from tests.process.jobs import Job
from tests.process.redis_server import RedisServer
from tests.publishing import publishing_to

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from tests.process.board import Board
    from tests.process.harness import Processes

pytestmark = [pytest.mark.process, pytest.mark.postgres]

T = "t"
SLOW_MACHINE = timedelta(seconds=10)
REFUSED = {"superseded", "busy", "cleared"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Return this test's Redis, which keeps nothing on disk."""
    started = RedisServer(tmp_path)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def processes(server: RedisServer, processes: Processes) -> Processes:
    """Return the starter of processes whose broker is this test's Redis."""
    processes.settings = {"BROKER_URL": server.url}
    return processes


def accept(processes: Processes, threads: list[str], *, seconds_ahead: float = 0) -> None:
    """Has one job accepted in each thread, through this test's broker."""
    processes.act("accept", threads=threads, seconds_ahead=seconds_ahead).value()


def late(run: PassRun) -> timedelta:
    assert run.due_at is not None
    return run.started_at - run.due_at


class TestVisibilityTimeout:
    """One second, far below the eta and the pass; the start-up checks are told that time is scaled."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        return {**maintenance, "TEST_TIME_SCALE": 10_000}

    @pytest.fixture
    def processes(self, processes: Processes) -> Processes:
        processes.settings["BROKER_VISIBILITY_TIMEOUT"] = 1
        return processes

    def test_a1_an_alarm_that_redis_hands_to_several_workers_runs_once(
        self, processes: Processes, board: Board
    ) -> None:
        for name in ("one", "two"):
            processes.worker(name, concurrency=1, timer=False)
        accept(processes, [T], seconds_ahead=2.5)

        evidence.wait_for_rest()
        copies = len(board.notes("received"))
        assert copies >= 2, "Redis did hand it out again"
        wait_until(lambda: len(board.notes("answer")) >= copies, "every copy to be answered")
        assert evidence.outcomes(T) == ["ran"]
        assert len(board.notes("body")) == 1
        assert {note["outcome"] for note in board.notes("answer")} <= {"ran", *REFUSED}

    def test_l22_a2_a_pass_longer_than_the_visibility_timeout_runs_once(
        self, processes: Processes, board: Board
    ) -> None:
        """It renews its lease; the redelivery comes while it runs, is refused at once, and is gone."""
        for name in ("one", "two"):
            processes.worker(name, concurrency=2)
        board.order("body", PAUSE)
        accept(processes, [T])
        wait_until(lambda: board.notes("answer"), "the redelivery to be answered")
        assert {note["outcome"] for note in board.notes("answer")} <= REFUSED
        board.open("body")
        evidence.wait_for_rest()
        assert len(board.notes("body")) == 1
        assert evidence.outcomes(T) == ["ran"]


def test_l23_b2_a_flush_loses_every_message_and_no_work(
    processes: Processes, server: RedisServer, board: Board
) -> None:
    """Twice: with nobody there to have taken a message, and with a worker that holds some."""
    queued = [f"queued-{number}" for number in range(100)]
    accept(processes, queued)
    assert server.length("maintenance") == len(queued)
    server.command("FLUSHALL")
    processes.worker("one", concurrency=2)
    evidence.wait_for_rest()

    armed = [f"armed-{number}" for number in range(100)]
    accept(processes, armed, seconds_ahead=1)
    server.command("FLUSHALL")
    evidence.wait_for_rest()

    assert len(board.notes("body")) == 200
    grace = timedelta(milliseconds=processes.maintenance["SWEEP_GRACE_MS"])
    assert max(late(run) for run in PassRun.objects.filter(thread_id__startswith="armed")) < grace + SLOW_MACHINE


def fill_the_cache(evicting: RedisServer) -> None:
    """Another application writes pages into its cache until the queue is gone."""
    with evicting.client() as cache:
        for number in range(50_000):
            cache.set(f"page-{number}", "x" * 1_000)
            if number % 100 == 0 and not cache.llen("maintenance"):
                return
    raise AssertionError("the queue was not evicted")


class TestEviction:
    """A Redis that is shared with a cache, which pushes the queues out."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[RedisServer]:
        limits = ("--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "10")
        started = RedisServer(tmp_path, ("--save", "", *limits))
        started.start()
        yield started
        started.stop()

    @pytest.fixture
    def processes(self, processes: Processes) -> Iterator[Processes]:
        yield processes
        processes.stop_all()

    def test_b2_an_evicting_redis_loses_messages_and_no_work(
        self, processes: Processes, server: RedisServer, celery_app: Celery
    ) -> None:
        """Before any worker has taken one, and from under the hands of the worker while it works."""
        accept(processes, [f"t{number}" for number in range(200)])
        assert server.length("maintenance") == 200
        fill_the_cache(server)
        told = status.health(timedelta())
        assert (told.overdue, told.handed_over) == (200, 200)
        assert "200 handed over, not started: queue 'maintenance'" in told.sentence()

        processes.worker("one")
        wait_until(lambda: Job.objects.filter(done=True).count() > 50, "some work to be done")
        fill_the_cache(server)
        evidence.wait_for_rest(seconds=60)
        assert Job.objects.filter(done=True).count() == 200
        with publishing_to(celery_app, server.url):
            (eviction,) = [finding for finding in broker.examine() if finding.id == "redis.eviction"]
        assert eviction.level is Level.WARNING
        assert "Redis throws queues away when its memory is full (maxmemory-policy is allkeys-lru)" in eviction.text


def test_b1_alarms_held_by_a_worker_outlive_a_redis_that_restarts_empty(
    processes: Processes, server: RedisServer, board: Board
) -> None:
    """The worker is supervised: kombu 5.7 ends one that holds messages when its Redis is gone."""
    threads = [f"t{number}" for number in range(20)]
    with processes.supervised([processes.worker("one")]):
        accept(processes, threads, seconds_ahead=2)
        wait_until(lambda: len(board.notes("received")) == len(threads), "the worker to hold all messages")
        server.stop()
        server.start()
        evidence.wait_for_rest()

    assert len(board.notes("body")) == len(threads)
    assert max(late(run) for run in PassRun.objects.all()) < SLOW_MACHINE


def test_b3_an_alarm_in_the_hands_of_a_killed_worker_runs_on_time_and_its_stale_copy_changes_nothing(
    processes: Processes, server: RedisServer, board: Board
) -> None:
    one = processes.worker("one")
    accept(processes, [T], seconds_ahead=2)
    wait_until(lambda: board.notes("received"), "the worker to hold the message")
    one.kill()
    processes.worker("two")
    evidence.wait_for_rest()
    assert late(evidence.runs(T)[0]) < SLOW_MACHINE
    before = evidence.row_of(T)

    assert server.forget_who_took_what() == 1
    wait_until(lambda: len(board.notes("answer")) == 2, "the stale copy to arrive")
    assert board.notes("answer")[1]["outcome"] in REFUSED
    after = evidence.row_of(T)
    assert (after.updated_at, after.processed) == (before.updated_at, before.processed)


def refused_a_copy(server: RedisServer, board: Board) -> bool:
    """Whether the message came back: by the dying worker's own hand, or because nobody acknowledged it."""
    server.forget_who_took_what()
    return any(note["outcome"] in REFUSED for note in board.notes("answer"))


def test_b8_a_pass_goes_on_while_redis_restarts_and_its_second_delivery_is_refused(
    tmp_path: Path, processes: Processes, board: Board
) -> None:
    durable = RedisServer(tmp_path, ("--appendonly", "yes", "--appendfsync", "always"))
    durable.start()
    try:
        processes.settings = {"BROKER_URL": durable.url}
        board.order("body", PAUSE)
        with processes.supervised([processes.worker("one")]):
            accept(processes, [T])
            wait_until(lambda: board.hits("body"), "the body")
            durable.stop()
            durable.start()
            board.open("body")
            evidence.wait_for_rest()
            wait_until(lambda: refused_a_copy(durable, board), "the second delivery to be refused")

        assert len(board.notes("body")) == 1
        assert evidence.outcomes(T) == ["ran"]
    finally:
        processes.stop_all()
        durable.stop()


def test_c4_a_redis_that_falls_silent_costs_one_caller_a_bounded_time_and_the_others_nothing(
    processes: Processes, server: RedisServer
) -> None:
    """The first failure opens the breaker; all is delivered when Redis speaks again."""
    server.command("CLIENT", "PAUSE", "5000")
    took = processes.act("touch_many", breaker_seconds=BREAKER_SECONDS, prefix="t", count=20).value()

    assert max(took) < 2.5
    assert sorted(took)[-2] < 0.5
    assert Job.objects.count() == 20
    processes.worker("one")
    evidence.wait_for_rest()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_u07_a_storm_outlives_redis_restarts_flushes_and_the_loss_of_beat(
    processes: Processes, server: RedisServer
) -> None:
    """Four supervised workers; Redis restarts empty three times, is flushed twice, and beat is killed once."""
    beat = processes.beat()
    names = ("one", "two", "three", "four")
    with processes.supervised([processes.worker(name) for name in names]):
        storm = processes.act("storm", seed=7, mutations=4_000, threads=100)
        for trouble in ("restart", "flush", "beat", "restart", "flush", "restart"):
            done = Job.objects.filter(done=True).count()
            wait_until(lambda done=done: Job.objects.filter(done=True).count() > done + 100, "progress")  # type: ignore[misc]
            evidence.assert_invariants()
            match trouble:
                case "restart":
                    server.stop()
                    server.start()
                case "flush":
                    server.command("FLUSHALL")
                case "beat":
                    beat.kill()
        storm.exit_code(within=600)
        storm.value()
        evidence.wait_for_rest(seconds=300)
    assert Job.objects.filter(done=True).count() == 4_000
