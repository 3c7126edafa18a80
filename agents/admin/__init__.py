"""The admin of agents: look at everything, change nothing by hand, act through the services with a reason."""

from __future__ import annotations

from agents.admin.approvals import ApprovalAdmin
from agents.admin.beside import AbortIntentAdmin, AttemptAdmin, EventAdmin
from agents.admin.calls import ToolCallAdmin, UnknownResolutionAdmin
from agents.admin.records import LogRecordAdmin
from agents.admin.submissions import SubmissionAdmin
from agents.admin.threads import ThreadAdmin

__all__ = [
    "AbortIntentAdmin",
    "ApprovalAdmin",
    "AttemptAdmin",
    "EventAdmin",
    "LogRecordAdmin",
    "SubmissionAdmin",
    "ThreadAdmin",
    "ToolCallAdmin",
    "UnknownResolutionAdmin",
]
