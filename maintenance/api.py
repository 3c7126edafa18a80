"""The door of maintenance. Everything else in the package is its own business."""

from __future__ import annotations

from maintenance.alarm import cancel, ensure_scheduled_by, schedule_at, schedule_now, scheduled
from maintenance.delivery import Delivery, Outcome
from maintenance.ensure import ensure_alarm
from maintenance.gate import Mutation, mutation, prearmed_mutation
from maintenance.operations import force_pass, pause, release, resume
from maintenance.operations import wake as wake_by_operator
from maintenance.passes import Result
from maintenance.passes import deliver as run_pass
from maintenance.snapshot import Snapshot, snapshot
from maintenance.sweep import sweep

wake = schedule_now

__all__ = [
    "Delivery",
    "Mutation",
    "Outcome",
    "Result",
    "Snapshot",
    "cancel",
    "ensure_alarm",
    "ensure_scheduled_by",
    "force_pass",
    "mutation",
    "pause",
    "prearmed_mutation",
    "release",
    "resume",
    "run_pass",
    "schedule_at",
    "schedule_now",
    "scheduled",
    "snapshot",
    "sweep",
    "wake",
    "wake_by_operator",
]
