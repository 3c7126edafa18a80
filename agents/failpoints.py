"""The failpoints of agents: one on each side of every commit, and one inside each that writes several rows.

Inert like those of maintenance; declared when the app starts, so that the crash matrix cannot forget one.
"""

from __future__ import annotations

from maintenance.failpoints import declare, hit

SUBMIT_BEFORE = "submit:before"
SUBMIT_ADMITTED = "submit:after-admit"
"""Everything is written, nothing is committed."""
SUBMIT_AFTER = "submit:after"
"""Committed, unless the caller's own transaction is still open; the receipt is not seen yet."""

CLAIM_BEFORE = "claim:before"
CLAIM_CLAIMED = "claim:after-claim"
"""The row is claimed and its attempt written, the input is not; nothing is committed."""
CLAIM_AFTER = "input:after-canonical-append"
"""Claim and input are committed, the handler has not begun."""

STEP_BEFORE = "step:before-append"
"""The step's body has run, nothing of it is recorded."""
STEP_APPENDED = "step:appended"
"""Its record is written, not committed."""
STEP_AFTER = "step:after-step-append"

TOOL_BEFORE = "tools:before-prepare"
"""The handler wants to call a tool, nothing of that is written."""
TOOL_PREPARING = "tools:prepared"
"""Row and record of the call are written, not committed."""
TOOL_PREPARED = "tools:after-prepared-append"
"""Committed; the tool has not begun."""
TOOL_RAN = "tools:ran"
"""The tool has ended, nothing of that is recorded."""
TOOL_SETTLING = "tools:settled"
"""Its result is written, not committed."""
TOOL_SETTLED = "tools:after-results-append"

UNKNOWN_BEFORE = "unknown:mark:before"
UNKNOWN_WRITTEN = "unknown:mark:written"
"""Calls and submission are marked as unknown; nothing is committed."""
UNKNOWN_AFTER = "unknown:mark:after"
RECONCILE_BEFORE = "reconcile:before"
"""A reconciler has answered, nothing of that is written."""
RECONCILE_WRITTEN = "reconcile:written"
RECONCILE_AFTER = "reconcile:after"
RESOLVE_BEFORE = "resolve:before"
RESOLVE_WRITTEN = "resolve:written"
"""A person's answer is written (with the abort intent, if it is one), not committed."""
RESOLVE_AFTER = "resolve:after-intent"
APPLY_BEFORE = "resolutions:apply:before"
APPLY_WRITTEN = "resolutions:apply:written"
"""Every answer is applied and the submission can go on; nothing is committed."""
APPLY_AFTER = "resolutions:apply:after"

SETTLE_BEFORE = "settle:before"
"""The handler has ended, its outcome is not recorded."""
SETTLE_APPENDED = "settle:after-canonical-append"
"""The settlement is in the log, the row is not final; nothing is committed."""
SETTLE_AFTER = "settle:after"

END_BEFORE = "attempt:end:before"
END_AFTER = "attempt:end:after"

SUSPEND_BEFORE = "suspend:before"
"""The run has to wait, nothing of that is written."""
SUSPEND_WRITTEN = "suspend:written"
"""Record and row say that it waits; nothing is committed."""
SUSPEND_AFTER = "suspend:after"
WAKE_BEFORE = "wake:before"
WAKE_AFTER = "wake:after"

DECIDE_BEFORE = "approval:decide:before"
DECIDE_WRITTEN = "approval:decide:written"
"""The decision is written, nothing is committed."""
DECIDE_AFTER = "approval:decide:after"
EVENT_BEFORE = "event:before"
EVENT_WRITTEN = "event:written"
EVENT_AFTER = "event:after"
ANSWER_BEFORE = "answer:before"
"""What the run waited for is there, and not yet a record of the run."""
ANSWER_WRITTEN = "answer:written"
ANSWER_AFTER = "answer:after"

JOIN_BEFORE = "join:before"
JOIN_WRITTEN = "join:after-canonical-append"
"""Followers and their inputs are written, nothing is committed."""
JOIN_AFTER = "join:after"

ABORT_BEFORE = "abort:before"
ABORT_WRITTEN = "abort:written"
"""The intent is written, nothing is committed."""
ABORT_AFTER = "abort:after-intent"
ABORT_SETTLE_BEFORE = "abort:settle:before"
ABORT_SETTLE_WRITTEN = "abort:settle:written"
ABORT_SETTLE_AFTER = "abort:settle:after"

REPAIR_BEFORE = "recovery:repair:before"
REPAIR_WRITTEN = "recovery:repair:written"
"""The repair and its annotation are written, not committed."""
REPAIR_AFTER = "recovery:repair:after"

ALL = (
    SUBMIT_BEFORE,
    SUBMIT_ADMITTED,
    SUBMIT_AFTER,
    CLAIM_BEFORE,
    CLAIM_CLAIMED,
    CLAIM_AFTER,
    STEP_BEFORE,
    STEP_APPENDED,
    STEP_AFTER,
    TOOL_BEFORE,
    TOOL_PREPARING,
    TOOL_PREPARED,
    TOOL_RAN,
    TOOL_SETTLING,
    TOOL_SETTLED,
    UNKNOWN_BEFORE,
    UNKNOWN_WRITTEN,
    UNKNOWN_AFTER,
    RECONCILE_BEFORE,
    RECONCILE_WRITTEN,
    RECONCILE_AFTER,
    RESOLVE_BEFORE,
    RESOLVE_WRITTEN,
    RESOLVE_AFTER,
    APPLY_BEFORE,
    APPLY_WRITTEN,
    APPLY_AFTER,
    SETTLE_BEFORE,
    SETTLE_APPENDED,
    SETTLE_AFTER,
    END_BEFORE,
    END_AFTER,
    SUSPEND_BEFORE,
    SUSPEND_WRITTEN,
    SUSPEND_AFTER,
    WAKE_BEFORE,
    WAKE_AFTER,
    DECIDE_BEFORE,
    DECIDE_WRITTEN,
    DECIDE_AFTER,
    EVENT_BEFORE,
    EVENT_WRITTEN,
    EVENT_AFTER,
    ANSWER_BEFORE,
    ANSWER_WRITTEN,
    ANSWER_AFTER,
    JOIN_BEFORE,
    JOIN_WRITTEN,
    JOIN_AFTER,
    ABORT_BEFORE,
    ABORT_WRITTEN,
    ABORT_AFTER,
    ABORT_SETTLE_BEFORE,
    ABORT_SETTLE_WRITTEN,
    ABORT_SETTLE_AFTER,
    REPAIR_BEFORE,
    REPAIR_WRITTEN,
    REPAIR_AFTER,
)

declare(*ALL)

__all__ = ["ALL", "hit"]
