"""A thread that has seen everything, and the ways to make its rows and its log disagree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from agents import api, log
from agents.log import EMPTY, Batch, Producer
from agents.models import LogBatch, LogRecord, Submission, Thread
from agents.models.thread import EMPTY_DIGEST
from agents.records import NewRecord
from maintenance import clock
from tests.agents_kit import run

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare


def work(ctx: api.Context, given: Any) -> Any:
    """Everything that leaves a row: a call, a question, an event, followers, a wait that does not end."""
    if given == "wait":
        return ctx.wait_event("never")
    if given == "sleep":
        return ctx.sleep(600)
    ctx.call_tool(charge, amount=given)
    ctx.approval("refund", "refund", {"amount": given})
    ctx.wait_event("paid")
    return ctx.followups()


def charge(amount: Any) -> str:
    return f"charged {amount}"


@pytest.fixture(autouse=True)
def everything(declare: Declare) -> None:
    """A thread that has seen everything: #1 with its follower #2, #3 aborted in the queue, #4 waiting."""
    declare("worker", work)
    first = api.submit("t", "worker", 1)
    run()
    api.submit("t", "worker", 2)
    third = api.submit("t", "worker", 3)
    api.abort(third, actor="ann", reason="a mistake")
    api.resolve_approval(first.submission_id, "approved", name="refund", actor="ann", reason="fine")
    api.send_event("t", "paid", 5, key="k")
    run()
    api.submit("t", "worker", "wait")
    run()


def broken(**options: Any) -> dict[str, str]:
    """What fails, with its detail."""
    return {check.name: check.detail for check in api.verify("t", **options).failed}


Change = Callable[[list[NewRecord]], list[NewRecord]]


def forge(change: Change) -> None:
    """Writes the whole log again as `change` makes it, in one batch whose chain is sound."""
    found = [NewRecord(record.record_id, record.content) for record in log.export("t")]
    LogRecord.objects.all().delete()
    LogBatch.objects.all().delete()
    Thread.objects.update(tail_sequence=0, tail_digest=EMPTY_DIGEST)
    with transaction.atomic():
        log.append("t", Batch("forged", change(found)), tail=EMPTY, producer=Producer("forger", 1), at=clock.now())


def replacing(family: str, **changed: Any) -> Change:
    """The records of that family with other contents."""
    return lambda records: [
        NewRecord(one.record_id, one.payload.model_copy(update=changed)) if one.payload.family == family else one
        for one in records
    ]


def ids() -> list[Any]:
    """The submissions in queue order."""
    return list(Submission.objects.order_by("queue_sequence").values_list("pk", flat=True))
