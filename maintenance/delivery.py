"""What arrives, what begins, what comes of it: the values of one pass."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from maintenance.lease import Lease
from maintenance.ports import BegunHead

IN_PLACE = "in-place"
"""The trigger of a pass that the worker takes itself, right after the one before."""

FORCED = "forced"
"""The trigger of a pass that a person forces; a message with it overrides everything but a live lease."""


class Outcome(StrEnum):
    """What came of a delivery. All but the last six write nothing but, where said, a follow-up message."""

    MALFORMED = "malformed"
    """The message does not decode; counted and dropped."""
    UNKNOWN_THREAD = "unknown_thread"
    """No row and no such thread."""
    PAUSED = "paused"
    """Paused or quarantined; resume or release brings it back."""
    CLEARED = "cleared"
    """The slot is empty: nothing is owed."""
    SUPERSEDED = "superseded"
    """The slot has moved since this message was sent."""
    EARLY = "early"
    """The deadline lies ahead; the message goes back with the rest of its countdown."""
    BUSY = "busy"
    """Another pass holds the thread; it will see what this message stands for."""
    QUARANTINED = "quarantined"
    """Began too often without an end; a person has to look."""
    PARKED = "parked"
    """It cannot go on without a person: it was paused and says why."""
    RAN = "ran"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LEASE_LOST = "lease_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One arrival of the request for a pass."""

    thread_id: str
    seq: int | None = None
    """The slot that the message was sent for; `None` when a person or a sweep asks for whatever is due."""
    trigger: str = "alarm"
    hops: int = 0
    """How often this message was handed back because it came early."""
    forced: bool = False
    """Overrides everything but a live lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A pass that holds its thread."""

    lease: Lease
    trigger: str
    generation: int
    """`dirty` as it was seen under the lock; acknowledged by finish at most."""
    actionable: bool
    raced: bool
    """A pre-armed mutation was in flight: this pass acknowledges nothing."""
    nonterminal: int
    due_at: datetime | None
    started_at: datetime
    head: BegunHead | None = None
    """The head attempt, if the transaction that began the pass has begun it too."""
