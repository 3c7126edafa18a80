"""The agent of the field's small job; agents finds this module by its name."""

from __future__ import annotations

from agents import agent
from agents.api import Context

APPEND = "bench-append"


@agent(APPEND)
def append(ctx: Context, number: int) -> int:
    """Nothing but its result, which the settlement records: the row that the job appends."""
    del ctx
    return number
