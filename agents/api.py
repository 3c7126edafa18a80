"""The door of agents: accept work, read what came of it, operate. Each verb has an async twin with an `a` before its
name.

Every verb takes an `actor` and asks the authorizer (`AGENTS["AUTHORIZER"]`) before it reads or writes anything: a
Django user needs a permission, `None` is trusted code, a text is the name of a trusted tool. What changes something
for a person takes a `reason` too; both are kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import islice

from asgiref.sync import sync_to_async

from agents.aborts import Abort
from agents.admission import Receipt
from agents.approvals import Decision
from agents.drivers.asynchronous import AsyncContext
from agents.drivers.context import Context
from agents.errors import (
    AgentFailure,
    ApprovalDenied,
    BudgetExhausted,
    CallNotUnknown,
    CallRefused,
    NeedsPerson,
    OutcomeUnknown,
    RetryRefused,
    ToolFailed,
    ToolFailure,
    UnknownResolutionConflict,
    UnknownTool,
)
from agents.log import Record
from agents.models import ApprovalDecision, ResolutionKind
from agents.naming import SubmissionLike
from agents.operations.authorize import Actor, Asked, Operation, OperationAuthorizer
from agents.operations.deciding import abort, force_pass, resolve_approval, resolve_unknown, send_event, wake
from agents.operations.explain import Explanation, explain, explain_thread
from agents.operations.export import export
from agents.operations.obligations import Obligation, Obligations, Severity, obligations
from agents.operations.observing import await_for_settlement, progress, settlement, submit, wait_for_settlement
from agents.operations.retry import Retried, retry
from agents.operations.show import show
from agents.operations.verify import Report, verify
from agents.policies import Approve, Deny, Intended
from agents.registry import agent
from agents.resolutions import Resolution
from agents.settlement import Settlement
from agents.tools import Done, Failed, NeverStarted, OpenCall, SafeRetry, StillUnknown, tool
from maintenance.errors import OperationDenied

__all__ = [
    "Abort",
    "Actor",
    "AgentFailure",
    "ApprovalDecision",
    "ApprovalDenied",
    "Approve",
    "Asked",
    "AsyncContext",
    "BudgetExhausted",
    "CallNotUnknown",
    "CallRefused",
    "Context",
    "Decision",
    "Deny",
    "Done",
    "Explanation",
    "Failed",
    "Intended",
    "NeedsPerson",
    "NeverStarted",
    "Obligation",
    "Obligations",
    "OpenCall",
    "Operation",
    "OperationAuthorizer",
    "OperationDenied",
    "OutcomeUnknown",
    "Receipt",
    "Record",
    "Report",
    "Resolution",
    "ResolutionKind",
    "Retried",
    "RetryRefused",
    "SafeRetry",
    "Settlement",
    "Severity",
    "StillUnknown",
    "SubmissionLike",
    "ToolFailed",
    "ToolFailure",
    "UnknownResolutionConflict",
    "UnknownTool",
    "aabort",
    "abort",
    "aexplain",
    "aexplain_thread",
    "aexport",
    "aforce_pass",
    "agent",
    "aobligations",
    "aprogress",
    "aresolve_approval",
    "aresolve_unknown",
    "aretry",
    "asend_event",
    "asettlement",
    "ashow",
    "asubmit",
    "averify",
    "await_for_settlement",
    "awake",
    "explain",
    "explain_thread",
    "export",
    "force_pass",
    "obligations",
    "progress",
    "resolve_approval",
    "resolve_unknown",
    "retry",
    "send_event",
    "settlement",
    "show",
    "submit",
    "tool",
    "verify",
    "wait_for_settlement",
    "wake",
]

EXPORTED_AT_ONCE = 256
"""Lines that an export hands to the event loop at a time."""

aabort = sync_to_async(abort)
aexplain = sync_to_async(explain)
aexplain_thread = sync_to_async(explain_thread)
aforce_pass = sync_to_async(force_pass)
aobligations = sync_to_async(obligations)
aprogress = sync_to_async(progress)
aresolve_approval = sync_to_async(resolve_approval)
aresolve_unknown = sync_to_async(resolve_unknown)
aretry = sync_to_async(retry)
asend_event = sync_to_async(send_event)
asettlement = sync_to_async(settlement)
ashow = sync_to_async(show)
asubmit = sync_to_async(submit)
averify = sync_to_async(verify)
awake = sync_to_async(wake)


async def aexport(thread_id: str, *, actor: Actor = None) -> AsyncIterator[str]:
    """As `export`; asks and looks when the first line is asked for."""
    lines = await sync_to_async(export)(thread_id, actor=actor)
    while page := await sync_to_async(lambda: list(islice(lines, EXPORTED_AT_ONCE)))():
        for line in page:
            yield line
