"""The `ticket` agent: refunds that a person approves, a question that may never be answered, a reminder a day later."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel

from agents.api import Context, agent
from agents.errors import EventTimedOut
from examples.support_desk.desk import refund, send_mail

SMALL = 2_000
"""Cents up to which nobody is asked."""
PATIENCE = timedelta(days=3)
"""How long a customer may take to answer."""


class Ticket(BaseModel):
    """What a customer wrote."""

    customer: str
    text: str
    cents: int = 0
    """What the order cost."""


class Closed(BaseModel):
    """How a ticket ended."""

    kind: Literal["refunded", "declined", "answered", "silent"]
    detail: str = ""


@agent("ticket", input=Ticket, output=Closed)
def ticket(ctx: Context, opened: Ticket) -> Closed:
    """One ticket from its first line to its end, over days and over the deaths of any number of workers."""
    if ctx.step("wants money back", wants_money_back, opened.text):
        return give_back(ctx, opened)
    mail(ctx, opened, "Tell us more, please.", name="question")
    try:
        answer = ctx.wait_event("customer answered", timeout=PATIENCE)
    except EventTimedOut:
        return Closed(kind="silent")
    mail(ctx, opened, "Thank you.", name="thanks")
    return Closed(kind="answered", detail=answer)


def wants_money_back(text: str) -> bool:
    """A model would read the ticket; a step records what it said, so it is asked once."""
    return "refund" in text.lower()


def give_back(ctx: Context, opened: Ticket) -> Closed:
    """A person decides about large sums; a day later the customer is asked whether the money has come."""
    large = opened.cents > SMALL
    if large and not ctx.approval("refund", "refund", {"cents": opened.cents, "customer": opened.customer}):
        mail(ctx, opened, "We are sorry.", name="refusal")
        return Closed(kind="declined")
    reference = ctx.call_tool(refund, customer=opened.customer, cents=opened.cents)
    mail(ctx, opened, "The money is on its way.", name="news")
    ctx.sleep(timedelta(days=1))
    mail(ctx, opened, "Has it arrived?", name="reminder")
    return Closed(kind="refunded", detail=reference)


def mail(ctx: Context, opened: Ticket, text: str, *, name: str) -> None:
    ctx.call_tool(send_mail, to=opened.customer, text=text, name=name)
