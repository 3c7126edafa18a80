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
