"""What an actor process can be told to do. Arguments and results are JSON."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from django.db import connection, transaction

from maintenance import clock, dispatch, ensure, passes, reaper, sweep
from maintenance.delivery import Delivery
from maintenance.errors import DurableAlarmError
from maintenance.gate import prearmed_mutation
from tests.process import jobs
from tests.process.board import KILL
from tests.process.entry import board


def submit(thread_id: str) -> int:
    """Accepts one job."""
    return jobs.submit(thread_id)


def accept(threads: list[str], seconds_ahead: float) -> None:
    """Accepts one job in each of these new threads, due so far ahead."""
    due = clock.now() + timedelta(seconds=seconds_ahead)
    for thread_id in threads:
        jobs.accept_for(thread_id, due)


def submit_prearmed(thread_id: str, die_at: str = "") -> int:
    """Accepts one job inside a pre-armed mutation; with `die_at`, dies at the next such failpoint after it."""
    with prearmed_mutation(thread_id, "test"):
        job_id = jobs.submit(thread_id)
        if die_at:
            board().order(die_at, KILL)
    return job_id


def submit_and_die_in_an_earlier_hook(thread_id: str) -> None:
    """Accepts one job in a transaction whose first commit hook ends the process: nothing is published."""
    with transaction.atomic():
        transaction.on_commit(lambda: os._exit(9))
        jobs.submit(thread_id)


def ensure_alarm(thread_id: str) -> None:
    ensure.ensure_alarm(thread_id)


def deliver(thread_id: str, seq: int) -> str:
    """Answers one delivery in this process, as the Celery task does."""
    return passes.deliver(Delivery(thread_id=thread_id, seq=seq)).outcome


def sweep_once() -> int:
    """One tick, as cron would run it: reap, then sweep."""
    reaper.reap()
    return sweep.sweep()


def sweep_until_nothing_is_left(gate: str) -> list[int]:
    """Sweeps batch by batch from the same instant as the other process that does so; the sizes of the batches."""
    connection.ensure_connection()
    board().meet(gate, parties=2)
    sizes = []
    while size := sweep.sweep():
        sizes.append(size)
    return sizes


def deliver_rounds(threads: list[str], seq: int) -> list[str]:
    """Delivers one message per thread, each at the same instant as every other process in the same round."""
    connection.ensure_connection()
    outcomes = []
    for thread_id in threads:
        board().meet(f"round-{thread_id}", parties=2)
        outcomes.append(deliver(thread_id, seq))
    return outcomes


def touch_many(prefix: str, count: int) -> list[float]:
    """Accepts one job in each of `count` threads; how many seconds each took."""
    took = []
    for number in range(count):
        began = time.monotonic()
        jobs.submit(f"{prefix}{number}")
        took.append(time.monotonic() - began)
    return took


def storm(seed: int, mutations: int, threads: int) -> dict[str, Any]:
    """Mutates random threads from four Python threads; how often the database asked to try again.

    Anything but a typed refusal ends the operation, and with it the test.
    """
    with ThreadPoolExecutor(4) as pool:
        shares = [pool.submit(_storm, f"{seed}:{n}", mutations // 4, threads) for n in range(4)]
        return {"refused": sum(share.result() for share in shares)}


def _storm(seed: str, mutations: int, threads: int) -> int:
    draw, refused = random.Random(seed), 0
    try:
        for _ in range(mutations):
            thread_id = f"storm-{draw.randrange(threads)}"
            while not _accepted(thread_id, draw):
                refused += 1
    finally:
        connection.close()
    return refused


def _accepted(thread_id: str, draw: random.Random) -> bool:
    try:
        if draw.random() < 0.1:
            submit_prearmed(thread_id)
        else:
            jobs.submit(thread_id, wake=draw.random() < 0.5)
    except DurableAlarmError:
        return False
    return True


def publish_twice(threads: list[str], seq: int) -> None:
    """Sends the same message two times for each thread."""
    for thread_id in threads:
        for _ in range(2):
            assert dispatch.publish(dispatch.Hint(thread_id=thread_id, seq=seq))
