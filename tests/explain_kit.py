"""Submissions to be explained, with a secret that no explanation may show."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agents import api
from tests.agents_kit import run

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare


SECRET = "hunter2"


def sentence(receipt: api.Receipt) -> str:
    return api.explain(receipt).sentence


def submit(declare: Declare, handler: Callable[[api.Context, Any], Any], **options: Any) -> api.Receipt:
    declare("worker", handler, **options)
    return api.submit("t", "worker", {"password": SECRET})


def waiting_for_approval(declare: Declare, **options: Any) -> api.Receipt:
    arguments = {"amount": 7, "card": SECRET, "since": None, SECRET * 9: [1]}
    receipt = submit(declare, lambda ctx, _: ctx.approval("refund", "refund", arguments, **options))
    run()
    return receipt
