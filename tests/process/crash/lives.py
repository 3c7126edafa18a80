"""The lives of the matrix: what is submitted, who does what about it, what must come of it, which failpoints it passes.

A life is lived by one process after the other, each of which repeats whatever it got no answer to: the client submits
under its keys again, people look at what became of things and answer, workers run what is due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agents import api, failpoints
from agents.models import LogRecord, Submission
from agents.records import RepairAnnotated
from agents.states import State
from maintenance import api as maintenance
from maintenance import ensure
from maintenance.failpoints import ALL
from maintenance.testing import run_due_passes

Inputs = list[dict[str, Any]]
Ended = tuple[str, Any]
"""Outcome and result of a submission."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """One story of one thread."""

    agent: str
    inputs: Inputs = field(default_factory=lambda: [{"n": 1}])
    ends: list[Ended]
    """What each submission must come to, in the order of the inputs."""
    once: tuple[str, ...] = ()
    """Effects that must have happened exactly once."""
    never: tuple[str, ...] = ()
    one_key: tuple[str, ...] = ()
    """Effects that may be repeated, always under the same key."""
    client: Callable[[str, list[api.Receipt]], None] = lambda _thread, _receipts: None
    """What the client does after submitting, each time it comes by."""
    submits: Callable[[str, Callable[[], list[api.Receipt]]], list[api.Receipt]] = lambda _thread, submit: submit()
    preludes: tuple[str, ...] = ()
    """Failpoints at which processes have died before, each another one."""
    agents: dict[str, Any] = field(default_factory=dict)
    """Settings of `AGENTS`."""
    resolution: str = ""
    """How a person ends an unknown call; by default as it was."""
    loses_a_hint: bool = False
    """The broker refuses the first hint of each process."""


def _abort_all(_: str, receipts: list[api.Receipt]) -> None:
    for receipt in receipts:
        if api.settlement(receipt) is None:
            api.abort(receipt, actor="somebody", reason="enough")


def _abort_once_asleep(thread_id: str, receipts: list[api.Receipt]) -> None:
    run_due_passes()
    if Submission.objects.filter(pk=receipts[0].submission_id, state=State.SUSPENDED).exists():
        _abort_all(thread_id, receipts[:1])


def _contradict(thread_id: str, receipts: list[api.Receipt]) -> None:
    """Once, the row forgets that it is settled; the log does not."""
    run_due_passes()
    was_repaired = LogRecord.objects.filter(thread_id=thread_id, family=RepairAnnotated.family).exists()
    with maintenance.mutation(thread_id):
        settled = Submission.objects.filter(pk=receipts[0].submission_id, state=State.SETTLED)
        if not was_repaired:
            settled.update(state=State.INPUT_APPLIED, outcome="", settled_at=None)


def _ensure(thread_id: str, _: list[api.Receipt]) -> None:
    ensure.ensure_alarm(thread_id)


def _prearmed(thread_id: str, submit: Callable[[], list[api.Receipt]]) -> list[api.Receipt]:
    with maintenance.prearmed_mutation(thread_id, "test"):
        return submit()


def _tool(name: str, result: Any, **rest: Any) -> Life:
    return Life(agent="crash-tool", inputs=[{"tool": name}], ends=[("completed", result)], **rest)


PARTS = ["one", "two", "three"]
ABORTED: Ended = ("aborted", None)

LIVES: dict[str, Life] = {
    "steps": Life(agent="crash-steps", inputs=[{"n": 1}, {"n": 2}], ends=[("completed", PARTS)] * 2),
    "ordinary": _tool("charge", "charged", once=("charge",)),
    "idempotent": _tool("mail", "mailed", one_key=("mail",)),
    "reconciled": _tool("ship", "shipped", once=("ship",)),
    "stepped": _tool("pack", ["box", "label"]),
    "sleep": Life(agent="crash-sleep", ends=[("completed", "awake")]),
    "approval": Life(agent="crash-approval", ends=[("completed", "approved")]),
    "event": Life(agent="crash-event", ends=[("completed", {"is": "good"})]),
    "retry": Life(agent="crash-retry", ends=[("completed", "at last")]),
    "join": Life(
        agent="crash-join",
        inputs=[{"n": 1}, {"n": 2}, {"n": 3}],
        ends=[("completed", [1, 2, 3])] + [("completed", None)] * 2,
    ),
    "aborted in the queue": Life(agent="crash-echo", ends=[ABORTED], client=_abort_all),
    "aborted asleep": Life(
        agent="crash-sleep",
        inputs=[{"n": 1}, {"n": 2}],
        ends=[ABORTED, ("completed", "awake")],
        client=_abort_once_asleep,
    ),
    "aborted while it runs": Life(agent="crash-abort-itself", ends=[ABORTED], agents={"ABORT_POLL_MS": 5}),
    "yielding": Life(agent="crash-yield", ends=[("completed", 1)]),
    "renewing": Life(agent="crash-renew", ends=[("completed", True)]),
    "exhausted": Life(
        agent="crash-echo",
        ends=[("failed", "AttemptsExhausted")],
        preludes=(failpoints.CLAIM_AFTER,),
        agents={"RETRY_BUDGET": 1},
    ),
    "contradicted": Life(agent="crash-echo", ends=[("completed", 1)], client=_contradict),
    "happened unseen": _tool("charge", "charged", once=("charge",), preludes=(failpoints.TOOL_RAN,)),
    "died before it": _tool("charge", "charged", once=("charge",), preludes=(failpoints.TOOL_PREPARED,)),
    "given up": Life(
        agent="crash-tool",
        inputs=[{"tool": "charge"}],
        ends=[ABORTED],
        once=("charge",),
        preludes=(failpoints.TOOL_RAN,),
        resolution="abort",
    ),
    "cannot tell": _tool("telegraph", "sent", once=("telegraph",)),
    "shipped unseen": _tool("ship", "shipped", once=("ship",), preludes=(failpoints.TOOL_RAN,)),
    "never shipped": _tool("ship", "shipped", once=("ship",), preludes=(failpoints.TOOL_PREPARED,)),
    "ensured": Life(agent="crash-echo", ends=[("completed", 1)], client=_ensure),
    "forgotten": Life(agent="crash-echo", ends=[("completed", 1)], loses_a_hint=True),
    "prearmed": Life(agent="crash-echo", ends=[("completed", 1)], submits=_prearmed),
    "orphaned": Life(agent="crash-echo", ends=[("completed", 1)], preludes=(failpoints.CLAIM_AFTER,)),
}
"""Every life by its name."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One death: in which life, at which failpoint, the how manieth time it is passed."""

    point: str
    life: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.point}, {self.life}" + (f", {self.nth}" if self.nth > 1 else "")


_TOOLS = ("ordinary", "idempotent", "reconciled", "stepped")
_WAITS = ("sleep", "approval", "event", "retry")
_ABORTS = ("aborted in the queue", "aborted asleep", "aborted while it runs")

_BY_PREFIX: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tools:", _TOOLS),
    ("suspend:", _WAITS),
    ("wake:", _WAITS),
    ("answer:", ("approval", "event")),
    ("approval:", ("approval",)),
    ("event:", ("event",)),
    ("join:", ("join",)),
    ("abort:settle:", _ABORTS),
    ("abort:", ("aborted in the queue", "aborted while it runs")),
    ("attempt:end:", ("yielding",)),
    ("recovery:repair:", ("exhausted", "contradicted")),
    ("unknown:", ("happened unseen", "cannot tell")),
    ("resolve:", ("happened unseen", "died before it", "given up")),
    ("resolutions:", ("happened unseen", "died before it")),
    ("reconcile:", ("shipped unseen", "never shipped")),
    ("settle:", ("steps", "join")),
    ("lease:renew:", ("renewing",)),
    ("reap:", ("orphaned",)),
    ("sweep:", ("forgotten",)),
    ("maintenance:ensure:", ("ensured",)),
    ("maintenance:finish:", ("steps", "sleep")),
    ("maintenance:mutation:", ("steps", "prearmed")),
    ("maintenance:dirty:", ("steps", "prearmed")),
)
"""Which lives pass the failpoints of a family; the first prefix that fits."""

DEFAULT = ("steps",)
"""What is tried with a failpoint of no family: a new one that it does not pass needs a life of its own."""


def cells() -> list[Cell]:
    """The whole matrix, from the list of all failpoints."""
    made = [Cell(point, life) for point in ALL for life in _lives_that_pass(point)]
    # The second passing is that of the pre-arming itself, around the submission.
    return [*made, Cell("maintenance:mutation:finished", "prearmed", 2)]


def _lives_that_pass(point: str) -> tuple[str, ...]:
    return next((lives for prefix, lives in _BY_PREFIX if point.startswith(prefix)), DEFAULT)
