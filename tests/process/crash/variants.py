"""Broken forms of the system, which the matrix must catch. Only a process of the matrix is ever broken."""

from __future__ import annotations

from collections.abc import Callable

from agents import calling, calls, ledger, tools
from agents.models import ToolKind
from maintenance.ports import Residue


def reruns_open_calls() -> None:
    """Takes every tool for one that may be run again."""
    every = frozenset(ToolKind.values)
    for module in (tools, calling, calls):
        vars(module)["RERUNNABLE"] = every


def forgets_timers() -> None:
    """Finishes a pass without looking at what is left."""
    ledger.ThreadLedger.scan_nonterminal = lambda *_: Residue()  # type: ignore[method-assign]


VARIANTS: dict[str, Callable[[], None]] = {"reruns open calls": reruns_open_calls, "forgets timers": forgets_timers}
"""How each is made, by name."""
