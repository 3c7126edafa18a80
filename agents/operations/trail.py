"""The audit trail: who did what to which thread and why, beside what maintenance writes there. Append-only."""

from __future__ import annotations

from datetime import datetime

from maintenance.models import OperatorAction

State = dict[str, object]
"""What an action found or left, as plain JSON: ids and states, never a payload."""


def note(
    action: str, thread_id: str, *, actor: str, reason: str, before: State, after: State, at: datetime
) -> OperatorAction:
    """Writes one action down, in the transaction of the change itself: neither is there without the other."""
    return OperatorAction.objects.create(
        actor=actor, action=action, thread_id=thread_id, reason=reason, before=before, after=after, created_at=at
    )
