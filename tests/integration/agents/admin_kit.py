"""What tests of the admin of agents stand on: rows in every state, made by real work, and people who look at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.http import urlencode

from agents import api, failpoints
from agents.errors import RetryLater
from agents.models import Approval, Submission, ToolCall
from tests.agents_kit import run, run_after_a_death
from tests.operators import operator
from tests.tools_kit import crash

if TYPE_CHECKING:
    from django.db.models import Model
    from django.test import Client

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare
    from tests.tools_kit import World

MODELS = (
    "thread",
    "submission",
    "attempt",
    "toolcall",
    "approval",
    "unknownresolution",
    "event",
    "abortintent",
    "logrecord",
)
VIEWS = tuple(f"view_{model}" for model in MODELS)

SECRET = "swordfish-4711"
"""Part of every payload."""


def looker(*permissions: str, name: str = "ann") -> Client:
    """A client of a staff user who may look at every row, and do what is named beside."""
    return operator(*VIEWS, *permissions, name=name)


def list_url(model: str, **query: str) -> str:
    url = reverse(f"admin:wakeful_agents_{model}_changelist")
    return f"{url}?{urlencode(query)}" if query else url


def listed(client: Client, model: str, **query: str) -> list[Any]:
    answer = client.get(list_url(model, **query))
    assert answer.status_code == 200, answer
    return list(answer.context["cl"].result_list)


def page_url(row: Model) -> str:
    return reverse(f"admin:wakeful_agents_{row._meta.model_name}_change", args=[quote(str(row.pk))])


def page_of(client: Client, row: Model) -> str:
    answer = client.get(page_url(row))
    assert answer.status_code == 200, answer
    return str(answer.content.decode())


def act_url(model: str, action: str) -> str:
    return reverse(f"admin:wakeful_agents_{model}_act", args=[action])


def act(client: Client, row: Model, action: str, **data: str) -> Any:
    """Sends the filled-in page of an action on one row."""
    return client.post(act_url(str(row._meta.model_name), action), {"_selected_action": [str(row.pk)], **data})


def said(answer: Any) -> list[str]:
    """The messages that the next page shows."""
    return [str(message) for message in answer.wsgi_request._messages]


class Desk:
    """Threads with work in every state; each thread is named for what its head does."""

    def __init__(self, declare: Declare, world: World, points: Failpoints) -> None:
        self._points = points
        world.tool("charge")
        declare("asker", lambda ctx, _: ctx.approval("refund", "refund", {"card": SECRET}).reason)
        declare("buyer", lambda ctx, _: ctx.call_tool("charge", amount=5))
        declare("sleeper", lambda ctx, _: ctx.sleep(3_600))
        declare("listener", lambda ctx, _: ctx.wait_event("paid"))
        declare("failer", _fail)
        declare("waiter", _be_limited)
        declare("host", _take_along)
        declare("echo", lambda _ctx, given: given)

    def submit(self, thread_id: str, agent: str) -> Submission:
        receipt = api.submit(thread_id, agent, {"secret": SECRET})
        run()
        return Submission.objects.get(pk=receipt.submission_id)

    def asking(self, thread_id: str = "asking") -> Approval:
        """A question that nobody has answered."""
        return Approval.objects.get(submission=self.submit(thread_id, "asker"))

    def unknown(self, thread_id: str = "unknown") -> ToolCall:
        """A call of which nobody knows what became."""
        receipt = api.submit(thread_id, "buyer", {"secret": SECRET})
        crash(self._points, failpoints.TOOL_RAN, thread_id)
        run_after_a_death()
        return ToolCall.objects.get(submission_id=receipt.submission_id, status="unknown")

    def everything(self) -> None:
        """One thread for each state, and one that went through a decision, an answer, an abort and an event."""
        self.asking()
        self.unknown()
        for thread_id, agent in (("sleeping", "sleeper"), ("listening", "listener"), ("failed", "failer")):
            self.submit(thread_id, agent)
        self.submit("limited", "waiter")
        self.submit("done", "echo")
        for _ in range(2):
            api.submit("joined", "host", {"secret": SECRET})
        api.submit("unknown", "echo", {"secret": SECRET})
        run()
        self._went_through()

    def _went_through(self) -> None:
        api.resolve_approval(self.asking("past").pk, "denied", actor="bob", reason="too late")
        run()
        call = self.unknown("past")
        api.resolve_unknown(
            call.submission_id, call.call, "completed-with-result", result=SECRET, actor="bob", reason="I looked"
        )
        run()
        listening = self.submit("past", "listener")
        api.send_event("past", "paid", {"secret": SECRET}, key="k")
        run()
        listening = self.submit("past", "listener")
        api.abort(listening.pk, actor="bob", reason="not needed")
        run()


def _fail(_ctx: Any, _given: Any) -> None:
    raise api.AgentFailure("the card was declined")


def _be_limited(_ctx: Any, _given: Any) -> None:
    raise RetryLater("slow down", after=600)


def _take_along(ctx: Any, _given: Any) -> None:
    ctx.followups()
    ctx.sleep(3_600)


@pytest.fixture
def desk(declare: Declare, world: World, points: Failpoints) -> Desk:
    """Return the desk of one test."""
    return Desk(declare, world, points)
