"""What finish decides: the acknowledgement and the next slot, as a pure function of what it read.

Rules: the design, 3.6 step 6; the reference's F1 to F4 in the alarm-host specification, 8.4 and 8.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from maintenance.conf import MaintenanceSettings
from maintenance.ports import Residue
from maintenance.rearm import earliest, failure_delay, stalled_delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that finish knows, read after the row lock."""

    now: datetime
    slot: datetime | None
    dirty: int
    processed: int
    generation: int
    """`dirty` as begin (or prepare) saw it."""
    raced: bool
    """A pre-armed mutation was in flight at begin or is now."""
    residue: Residue | None
    """What is left; `None` when no canonical work ran, which acknowledges nothing."""
    settled: bool
    """Real progress: a settlement, or a fenced record of progress."""
    repaired: bool
    stalls: int
    pending: datetime | None
    """The earliest deadline of publication, projection, messages and timers."""

    @property
    def is_still_due(self) -> bool:
        """Whether a deadline that has come still stands after the pass that was to serve it."""
        return self.pending is not None and self.pending <= self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What finish writes."""

    processed: int
    slot: datetime | None
    stalls: int


def decide(seen: Seen, settings: MaintenanceSettings) -> Decision:
    """First match wins: autonomous work, an overlap with a mutation, a pending deadline, nothing."""
    if seen.residue is not None and seen.residue.autonomous:
        return _go_on(seen, settings)
    processed = _acknowledged(seen)
    if seen.raced or seen.dirty > processed:
        return Decision(processed=processed, slot=_look_again(seen, settings), stalls=seen.stalls)
    if seen.pending is not None:
        return Decision(processed=processed, slot=_not_before(seen, seen.pending, settings), stalls=seen.stalls)
    return Decision(processed=processed, slot=None, stalls=0)


def _acknowledged(seen: Seen) -> int:
    """Exactly the certified generation, and only if no mutation could have hidden work from this pass."""
    return seen.processed if seen.residue is None or seen.raced else max(seen.processed, seen.generation)


def _go_on(seen: Seen, settings: MaintenanceSettings) -> Decision:
    """Autonomous work is left: the generation stays dirty."""
    claimable = seen.residue is not None and seen.residue.claimable_head
    if seen.settled and claimable:
        return Decision(processed=seen.processed, slot=seen.now, stalls=0)
    if seen.settled or seen.repaired:
        return Decision(processed=seen.processed, slot=_by(seen, settings.alarm_backoff_base, settings), stalls=0)
    delay = stalled_delay(
        seen.stalls, base=settings.alarm_backoff_base, cap=settings.alarm_backoff_cap, scan=settings.scan_interval
    )
    return Decision(processed=seen.processed, slot=_by(seen, delay, settings), stalls=seen.stalls + 1)


def _look_again(seen: Seen, settings: MaintenanceSettings) -> datetime:
    """A mutation overlapped. If it has announced nothing since begin, begin's own fallback is not a request."""
    by = _by(seen, settings.scan_interval, settings)
    return by if seen.dirty == seen.generation else earliest(seen.slot, by) or by


def _by(seen: Seen, delay: timedelta, settings: MaintenanceSettings) -> datetime:
    """`now + delay`, or the pending deadline if that is earlier, but not below the least delay."""
    at = seen.now + delay
    if seen.pending is None or seen.pending >= at:
        return at
    return _not_before(seen, seen.pending, settings)


def _not_before(seen: Seen, at: datetime, settings: MaintenanceSettings) -> datetime:
    """A deadline that has passed must not spin: at least `minimum` from now."""
    return max(seen.now + settings.minimum, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What a failing pass knows, read after the row lock."""

    now: datetime
    failures: int
    """Including this one."""
    progressed: bool
    """This pass committed fenced progress before it failed."""
    mutated: bool
    """A mutation announced a newer generation since begin."""
    timer_at: datetime | None


def retry_at(failed: Failed, settings: MaintenanceSettings) -> datetime:
    """When a failed pass comes back: backoff, bounded by progress, racing mutations and timers."""
    delay = settings.alarm_backoff_base
    if not failed.progressed:
        delay = failure_delay(failed.failures, base=settings.failure_backoff_base, cap=settings.failure_backoff_cap)
    if failed.mutated:
        delay = min(delay, settings.scan_interval)
    at = failed.now + delay
    return max(failed.now + settings.minimum, earliest(at, failed.timer_at) or at)
