"""What the desk does outside: mail and money. In this example both only write to the log."""

from __future__ import annotations

import logging

from agents.api import NeverStarted, OpenCall, StillUnknown, tool

logger = logging.getLogger("support_desk")


@tool("send_mail", kind="idempotent")
def send_mail(to: str, text: str, idempotency_key: str) -> str:
    """The mail service knows our key and sends each mail once, however often it is asked."""
    logger.info("mail to %s: %s (%s)", to, text, idempotency_key)
    return idempotency_key


def find_refund(call: OpenCall) -> NeverStarted | StillUnknown:
    """A refund whose process died: the bank shows those of yesterday; of today's it knows nothing yet."""
    del call
    return StillUnknown("the bank does not show today's refunds yet")


@tool("refund", reconcile=find_refund)
def refund(customer: str, cents: int) -> str:
    """Gives money back. The bank knows no keys: running it twice pays twice."""
    logger.info("refund of %d cents to %s", cents, customer)
    return f"refund-{customer}-{cents}"
