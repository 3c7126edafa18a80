"""The rows of agents. Fields, constraints and pure derivations; every write is in a verb's module."""

from __future__ import annotations

from agents.models.attempt import Attempt
from agents.models.record import LogBatch, LogRecord
from agents.models.submission import Submission
from agents.models.thread import Thread
from agents.models.waiting import (
    AbortIntent,
    Approval,
    ApprovalDecision,
    CallStatus,
    Event,
    ResolutionKind,
    ToolCall,
    ToolKind,
    UnknownResolution,
)

__all__ = [
    "AbortIntent",
    "Approval",
    "ApprovalDecision",
    "Attempt",
    "CallStatus",
    "Event",
    "LogBatch",
    "LogRecord",
    "ResolutionKind",
    "Submission",
    "Thread",
    "ToolCall",
    "ToolKind",
    "UnknownResolution",
]
