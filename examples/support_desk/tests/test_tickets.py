"""The desk's own tests: days pass in milliseconds, people answer at once, workers die where it hurts most."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import TestCase

from agents.api import Receipt, resolve_approval, resolve_unknown, send_event, submit, verify
from agents.testing import (
    Script,
    assert_alarm,
    crash_after_effect,
    crash_at,
    expect_crash,
    refute_alarm,
    run_due_passes,
    scripted_tool,
    settled,
    travel,
    waiting,
)
from examples.support_desk.desk import refund, send_mail
from examples.support_desk.durable_agents import PATIENCE

pytestmark = pytest.mark.django_db

T = "ticket-1"
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def mails() -> Iterator[Script]:
    """No test sends a mail; `mails.calls` are those that would have been sent."""
    with scripted_tool(send_mail, *["sent"] * 10) as script:
        yield script


def opened(text: str, cents: int = 0) -> Receipt:
    receipt = submit(T, "ticket", {"customer": "ann", "text": text, "cents": cents}, idempotency_key="mail-77")
    run_due_passes()
    return receipt


def texts(mails: Script) -> list[Any]:
    return [call["text"] for call in mails.calls]


def test_a_small_refund_is_paid_at_once_and_asked_about_a_day_later(mails: Script) -> None:
    with scripted_tool(refund, "r-1") as refunds:
        receipt = opened("I want a refund", cents=500)
        assert_alarm(T, within=DAY)
        travel(DAY)
        run_due_passes()
    assert settled(receipt).result == {"kind": "refunded", "detail": "r-1"}
    assert refunds.calls == [{"customer": "ann", "cents": 500}]
    assert texts(mails) == ["The money is on its way.", "Has it arrived?"]


def test_a_large_refund_waits_for_a_person_and_costs_nothing_meanwhile() -> None:
    receipt = opened("Refund me!", cents=99_000)
    assert waiting(receipt) == ("approval", "refund")
    refute_alarm(T)
    resolve_approval(receipt, "denied", name="refund", reason="never ordered")
    run_due_passes()
    assert settled(receipt).result["kind"] == "declined"


def test_a_customer_who_answers_is_thanked(mails: Script) -> None:
    receipt = opened("It is broken")
    send_event(T, "customer answered", "the left wheel", key="mail-78")
    run_due_passes()
    assert settled(receipt).result == {"kind": "answered", "detail": "the left wheel"}
    assert texts(mails) == ["Tell us more, please.", "Thank you."]


def test_a_customer_who_never_answers_is_not_waited_for_forever() -> None:
    receipt = opened("It is broken")
    travel(PATIENCE)
    run_due_passes()
    assert settled(receipt).result["kind"] == "silent"


def test_a_worker_that_dies_right_after_the_payment_does_not_pay_twice() -> None:
    """Nobody recorded that the money went out, so a person looks it up; the agent goes on with what she found."""
    with scripted_tool(refund, crash_after_effect()) as refunds:
        with expect_crash():
            opened("Refund, please", cents=500)
        run_due_passes()
        refute_alarm(T)
        receipt = opened("Refund, please", cents=500)
        resolve_unknown(
            receipt, "refund", "completed-with-result", result="r-9", actor="carol", reason="the bank shows it"
        )
        run_due_passes()
        travel(DAY)
        run_due_passes()
    assert settled(receipt).result == {"kind": "refunded", "detail": "r-9"}
    assert len(refunds) == 1
    assert verify(T, all_settled=True).ok


@pytest.mark.parametrize(
    "place", ["input:after-canonical-append", "step:after-step-append", "tools:after-results-append"]
)
def test_a_worker_may_die_anywhere_else_and_nobody_notices(place: str, mails: Script) -> None:
    with scripted_tool(refund, "r-1") as refunds:
        with crash_at(place):
            opened("Refund, please", cents=500)
        receipt = opened("Refund, please", cents=500)
        travel(DAY)
        run_due_passes()
    assert settled(receipt).result["kind"] == "refunded"
    assert (len(refunds), len(mails)) == (1, 2)


class TestAsDjangoDoes(TestCase):
    """Without pytest, a mixin does what the fixture does: `class …(DurableTests, TestCase)`."""

    def test_the_same_key_is_the_same_ticket(self) -> None:
        assert opened("Refund me!", cents=99_000) == opened("Refund me!", cents=99_000)
