"""The message wave beside a pass: bounded, joined, never in the way of the head (scenarios I-22, I-23)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from maintenance import wave
from maintenance.delivery import Outcome
from maintenance.ports import Work
from maintenance.testing import deliver
from tests.factories import MS, make_row, numbers, row_of
from tests.stubs import fail

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.clock import FrozenClock
    from tests.stubs import Stage

pytestmark = pytest.mark.django_db

BOUND = 10.0
"""Seconds that any wait of these tests may take before the test fails."""


def due_messages(stage: Stage, frozen: FrozenClock) -> None:
    stage.messages.inert = False
    stage.messages.deadline = frozen.at


@pytest.mark.postgres
def test_i22_a_held_wave_lets_the_head_settle_and_the_deadline_ends_it_once(
    stage: Stage, frozen: FrozenClock, settings: Settings
) -> None:
    settings.MAINTENANCE = {"SOFT_YIELD_MS": 100, "PASS_DEADLINE_MS": 400}
    due_messages(stage, frozen)
    held, released = threading.Event(), []

    def hold(work: Work) -> None:
        held.set()
        try:
            while True:
                work.checkpoint()
        finally:
            released.append("connection")

    def meet(_: Work) -> None:
        assert held.wait(BOUND)

    stage.messages.on_drain = hold
    stage.runtime.on_head = meet
    stage.runtime.settled = 1
    make_row(4, 3, 1, 0)

    result = deliver("t")

    assert "head" in stage.calls
    assert result.outcome is Outcome.INTERRUPTED
    assert "maintenance pass deadline" in result.error
    assert released == ["connection"]
    row = row_of()
    assert (row.processed, row.lease_token) == (3, None)
    assert row.alarm_at is not None


def test_i22_a_wave_that_shares_the_writer_ends_at_its_limit_without_failing_the_pass(
    stage: Stage, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite the wave runs inline, for a bounded time; what is left of it keeps its own deadline."""
    monkeypatch.setattr(connection, "vendor", "sqlite")
    monkeypatch.setattr(wave, "INLINE_SECONDS", 0.05)
    due_messages(stage, frozen)
    released = []

    def never_done(work: Work) -> None:
        try:
            while True:
                work.checkpoint()
        finally:
            released.append("connection")

    stage.messages.on_drain = never_done
    make_row(4, 3, 0, 0)

    result = deliver("t")

    assert (result.outcome, result.error) == (Outcome.RAN, "")
    assert released == ["connection"]
    assert numbers(frozen.at) == (4, 4, 0, 50)


def test_i22_the_inline_wave_follows_the_head(
    stage: Stage, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "vendor", "sqlite")
    due_messages(stage, frozen)
    make_row(4, 3, 0, 0)

    deliver("t")

    assert stage.calls == ["recovery", "head", "wave", "scan"]


def test_i23_a_message_deadline_that_fails_at_finish_fails_the_pass(stage: Stage, frozen: FrozenClock) -> None:
    stage.messages.inert = False
    stage.messages.on_deadline = lambda: fail() if "scan" in stage.calls else None
    make_row(4, 3, 0, 0)

    result = deliver("t")

    assert stage.calls == ["recovery", "head", "scan"]
    assert (result.outcome, row_of().processed) == (Outcome.FAILED, 3)
    assert row_of().alarm_at is not None


def test_a_wave_and_a_backfill_that_both_fail_are_both_told(stage: Stage, frozen: FrozenClock) -> None:
    due_messages(stage, frozen)
    stage.messages.on_drain = fail
    stage.projection.inert, stage.projection.on_drain = False, fail
    make_row(4, 3, 0, 0)

    result = deliver("t")

    assert "message wave failed" in result.error
    assert "projection backfill" in result.error
    assert row_of().last_error == result.error


def test_messages_that_cannot_say_hold_no_canonical_work_back(stage: Stage, frozen: FrozenClock) -> None:
    stage.messages.inert = False
    stage.messages.on_deadline = fail
    make_row(4, 3, 0, 0)

    result = deliver("t")

    assert ("recovery" in stage.calls, "head" in stage.calls) == (True, True)
    assert (result.outcome, row_of().processed) == (Outcome.FAILED, 3)


@pytest.mark.parametrize("port", ["sink", "messages"])
def test_a_quiet_thread_whose_port_cannot_say_fails_as_a_pass_and_backs_off(
    stage: Stage, frozen: FrozenClock, port: str
) -> None:
    """Not as a raw error out of the begin transaction: it would leave no trace and its text might be logged."""
    getattr(stage, port).inert = False
    getattr(stage, port).on_deadline = fail
    make_row(4, 4, 0, 0)

    result = deliver("t")

    assert result.outcome is Outcome.FAILED
    assert "secret detail" not in result.error
    row = row_of()
    assert (row.dirty, row.processed, row.failures, row.lease_token) == (4, 4, 1, None)
    assert row.alarm_at is not None
    assert row.alarm_at >= frozen.at + 500 * MS
