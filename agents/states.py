"""The states of a submission and the only ways from one to another.

The table below is the rule; each transition is one conditional UPDATE that names its sources, made under the
authority that the table names. Losing such an update is an answer, not an error. `docs/state-machine.md` is
generated from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django.db import models


class State(models.TextChoices):
    """Where a submission stands; the string under each says what that means and who moves it on."""

    ADMITTED = "admitted", "admitted"
    """A child whose parent has not recorded the lineage yet. Its parent's pass moves it on; nobody may claim it."""

    READY = "ready", "ready"
    """Accepted, waiting for its turn in the queue of its thread. The pass that finds it at the head claims it."""

    JOINED = "joined", "joined"
    """Its input is part of the host's run; it settles with the host."""

    INPUT_APPLIED = "input_applied", "input applied"
    """Its input is in the log: it runs, or its attempt was lost and the next one resumes from the last record."""

    SUSPENDED = "suspended", "suspended"
    """Waits for an approval, an event, a moment or a child. Costs nothing; the answer wakes the thread, and the pass
    that sees it there moves the submission on."""

    UNKNOWN = "unknown", "unknown"
    """A call may or may not have had its effect. A person (or a reconciler) resolves it; the queue waits."""

    TERMINALIZING = "terminalizing", "terminalizing"
    """The outcome is decided and recorded as such, but attached children still close. Nobody can change it."""

    SETTLED = "settled", "settled"
    """Final: completed, failed or aborted, with exactly one settlement record in the log."""


class Wait(models.TextChoices):
    """What a suspended submission waits for. All cost nothing; those with a time end by themselves."""

    APPROVAL = "approval", "approval"
    """A person's decision; may expire."""

    EVENT = "event", "event"
    """Something that the outside tells the thread; may time out."""

    TIMER = "timer", "timer"
    """A moment: `ctx.sleep`."""

    RETRY = "retry", "retry"
    """A moment before which nothing may try again: a backoff, or what the other side asked for."""

    CHILD = "child", "child"
    """Submissions of other threads that this one delegated."""


class Outcome(models.TextChoices):
    """What a settled submission came to."""

    COMPLETED = "completed", "completed"
    """The handler returned; its output is in the settlement record."""

    FAILED = "failed", "failed"
    """It cannot be completed; the settlement record says why, bounded and redacted."""

    ABORTED = "aborted", "aborted"
    """Somebody asked for its end before it had one."""


class Ending(models.TextChoices):
    """How an attempt ended; an empty value means that it runs, or that it vanished and nobody has looked yet."""

    SETTLED = "settled", "settled"
    """It recorded the outcome of its submission."""

    SUSPENDED = "suspended", "suspended"
    """It left the submission waiting for somebody else."""

    RETRIED = "retried", "retried"
    """It could not go on and left the submission waiting for another try."""

    YIELDED = "yielded", "yielded"
    """It was asked to stop (its time was up, or the worker was) and did so at a safe boundary."""

    INTERRUPTED = "interrupted", "interrupted"
    """It was stopped away from a boundary: past its deadline, or its thread was taken over."""

    FAILED = "failed", "failed"
    """The machinery under it failed (a store, a conflict); that says nothing about the work."""

    LOST = "lost", "lost"
    """Its process died without a word."""


class Authority(StrEnum):
    """Who may make a transition."""

    LEASE = "lease"
    """A pass, in a transaction that proves its lease."""

    GATE = "gate"
    """Anybody, in a mutation that bumps the thread's generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One way from some states to another."""

    name: str
    sources: frozenset[State]
    """Empty for an admission: there is no row before."""
    target: State
    authority: Authority
    meaning: str


def _transition(name: str, sources: str, target: State, authority: Authority, meaning: str) -> Transition:
    found = frozenset(State(source) for source in sources.split())
    return Transition(name=name, sources=found, target=target, authority=authority, meaning=meaning)


_OPEN = " ".join(state for state in State if state is not State.SETTLED)

TRANSITIONS: dict[str, Transition] = {
    made.name: made
    for made in (
        _transition("admit", "", State.READY, Authority.GATE, "a submission is accepted"),
        _transition("admit_child", "", State.ADMITTED, Authority.GATE, "a parent's delegation is accepted"),
        _transition("establish", "admitted", State.READY, Authority.LEASE, "the child's lineage is recorded"),
        _transition(
            "apply_input",
            "ready",
            State.INPUT_APPLIED,
            Authority.LEASE,
            "an attempt takes the head and its input is in the log, in one commit",
        ),
        _transition(
            "resume", "input_applied", State.INPUT_APPLIED, Authority.LEASE, "another attempt goes on where one stopped"
        ),
        _transition(
            "join",
            "ready",
            State.JOINED,
            Authority.LEASE,
            "a host takes the follower's input into its run, in one commit",
        ),
        _transition("suspend", "input_applied", State.SUSPENDED, Authority.LEASE, "the run has to wait"),
        _transition("wake", "suspended", State.INPUT_APPLIED, Authority.LEASE, "what it waited for is there"),
        _transition("mark_unknown", "input_applied", State.UNKNOWN, Authority.LEASE, "a call's effect is uncertain"),
        _transition("resolve", "unknown", State.INPUT_APPLIED, Authority.LEASE, "every open call is resolved"),
        _transition(
            "reserve_settlement",
            "input_applied suspended unknown",
            State.TERMINALIZING,
            Authority.LEASE,
            "the outcome is decided while children still close",
        ),
        _transition(
            "settle",
            "input_applied terminalizing",
            State.SETTLED,
            Authority.LEASE,
            "the settlement record is in the log, in the same commit",
        ),
        _transition("settle_joined", "joined", State.SETTLED, Authority.LEASE, "its host has settled"),
        _transition(
            "settle_idle",
            "admitted ready suspended unknown",
            State.SETTLED,
            Authority.LEASE,
            "an accepted abort ends what does not run",
        ),
        _transition(
            "finalize_from_history",
            _OPEN,
            State.SETTLED,
            Authority.LEASE,
            "the log already holds its settlement: the log is right",
        ),
    )
}
"""Every transition by its name."""

CLAIMABLE = TRANSITIONS["apply_input"].sources | TRANSITIONS["resume"].sources
"""States in which a head can be claimed; a head in any other blocks its queue."""


def sources(name: str) -> list[str]:
    """The source states of a transition, in a stable order, for its WHERE clause."""
    return sorted(TRANSITIONS[name].sources)


def as_markdown() -> str:
    """`docs/state-machine.md`: the diagram, the states and the table, all from this module."""
    return "\n".join([*_HEADER, *_diagram(), *_states(), *_table()]) + "\n"


_HEADER = [
    "# The state machine of a submission",
    "",
    "Generated from `agents/states.py`; `python -m agents.states > docs/state-machine.md` makes it again, and a test",
    "compares the two.",
    "",
]


def _diagram() -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2"]
    for made in TRANSITIONS.values():
        if made.name == "finalize_from_history":
            continue
        origins = [str(origin) for origin in sorted(made.sources, key=_order)] or ["[*]"]
        lines += [f"    {origin} --> {made.target}: {made.name}" for origin in origins]
    lines += ["    settled --> [*]"]
    return [*lines, "```", "", "(Not drawn: `finalize_from_history`, which leads from every state to `settled`.)", ""]


def _states() -> list[str]:
    lines = ["## States", ""]
    for state, text in zip(State, _member_docs(), strict=True):
        lines += [f"- **`{state}`**: {text}"]
    return [*lines, ""]


def _table() -> list[str]:
    lines = ["## Transitions", "", "| transition | from | to | authority | when |", "| --- | --- | --- | --- | --- |"]
    for made in TRANSITIONS.values():
        origins = ", ".join(f"`{state}`" for state in sorted(made.sources, key=_order)) or "(no row)"
        lines.append(f"| `{made.name}` | {origins} | `{made.target}` | {made.authority} | {made.meaning} |")
    return lines


def _order(state: State) -> int:
    return list(State).index(state)


def _member_docs() -> list[str]:
    """The string under each member of `State`, read from this file: Python itself does not keep them."""
    import ast  # noqa: PLC0415 - only the generator needs it
    import inspect  # noqa: PLC0415

    body = ast.parse(inspect.getsource(State)).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - narrows the type
    texts = [
        node.value.value
        for node in body.body[1:]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return [" ".join(text.split()) for text in texts]


if __name__ == "__main__":
    import sys

    sys.stdout.write(as_markdown())
