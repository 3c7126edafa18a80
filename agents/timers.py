"""Durable timers: a run sleeps without a worker, and goes on once its moment has come."""

from __future__ import annotations

from datetime import datetime, timedelta

from agents import records
from agents.attempt import Attempt
from agents.log import Batch
from agents.moments import moment, parsed
from agents.records import NewRecord, TimerSet
from agents.states import Wait
from maintenance import clock


def sleep(attempt: Attempt, name: str, duration: timedelta) -> None:
    """Lets the run rest for `duration`, counted from the first time it comes here."""
    sleep_until(attempt, name, clock.now() + duration)


def sleep_until(attempt: Attempt, name: str, until: datetime) -> None:
    """Lets the run rest until a moment of the database's clock; a recorded timer keeps its first moment."""
    record_id = records.of_run("timer", attempt.run, name)
    recorded = attempt.journal.payload(record_id)
    if recorded is not None:
        until = parsed(recorded["until"])
    payload = TimerSet(run=attempt.run, name=name, until=moment(until))
    batch = None if recorded is not None else Batch(record_id, [NewRecord(record_id, payload)])
    attempt.suspend(Wait.TIMER, name, wake_at=until, batch=batch, unless=lambda: until <= clock.now())
