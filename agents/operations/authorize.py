"""Who may do what: asked before anything is read or written, once for each operation.

An actor is `None` (trusted code of this project, written down as "system"), a Django user, or the name of a trusted
tool such as the management command, which vouches for whoever used it. Pass the user, not the user's name, wherever
permissions are to be looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser
from django.utils.module_loading import import_string

from agents.conf import get_settings
from maintenance.errors import INTERRUPTIONS, OperationDenied, bounded, described

SYSTEM = "system"
"""How an action of trusted code is written down."""

MAX_ACTOR = 200
MAX_SAID = 65_536
"""Longest reason that is kept, in characters."""

Actor = AbstractBaseUser | AnonymousUser | str | None


class Operation(StrEnum):
    """What can be asked for."""

    OBSERVE = "observe"
    """Read settlements and records with what they carry, and wait for them."""
    SHOW = "show"
    """See a thread's queue and log; what the records carry only for who may observe."""
    EXPLAIN = "explain"
    """Be told why a submission does not move; shows no payload."""
    VERIFY = "verify"
    """Check what is stored against the invariants."""
    EXPORT = "export"
    """Take a whole log along."""
    SCAN_OBLIGATIONS = "scan_obligations"
    """List what is owed, over all threads."""
    SUBMIT = "submit"
    """Give a thread more work."""
    SEND_EVENT = "send_event"
    """Tell a thread something."""
    RESOLVE_APPROVAL = "resolve_approval"
    """Approve or deny."""
    RESOLVE_UNKNOWN = "resolve_unknown"
    """Say what became of a call."""
    ABORT = "abort"
    """End a submission."""
    RETRY = "retry"
    """Have a submission looked at again now."""
    WAKE = "wake"
    """Make the next pass of a thread due now."""
    FORCE_PASS = "force_pass"  # noqa: S105 - a maintenance pass
    """The same, and let one pass run although the thread is paused or in quarantine."""


PERMISSIONS: dict[Operation, str] = {
    Operation.OBSERVE: "wakeful_agents.view_payload",
    Operation.SHOW: "wakeful_agents.view_logrecord",
    Operation.EXPLAIN: "wakeful_agents.view_submission",
    Operation.VERIFY: "wakeful_agents.verify_thread",
    Operation.EXPORT: "wakeful_agents.export_thread",
    Operation.SCAN_OBLIGATIONS: "wakeful_agents.view_submission",
    Operation.SUBMIT: "wakeful_agents.submit_submission",
    Operation.SEND_EVENT: "wakeful_agents.send_event",
    Operation.RESOLVE_APPROVAL: "wakeful_agents.resolve_approval",
    Operation.RESOLVE_UNKNOWN: "wakeful_agents.resolve_unknown",
    Operation.ABORT: "wakeful_agents.abort_submission",
    Operation.RETRY: "wakeful_agents.retry_submission",
    Operation.WAKE: "wakeful_maintenance.wake_thread",
    Operation.FORCE_PASS: "wakeful_maintenance.force_pass",
}
"""The one permission that each operation needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question to the authorizer: what the caller named, before anybody has looked whether it exists."""

    operation: Operation
    actor: Actor
    thread_id: str | None = None
    submission_id: UUID | None = None
    approval_id: UUID | None = None


class OperationAuthorizer(Protocol):
    """Named by `AGENTS["AUTHORIZER"]`; made once per process, without arguments."""

    def allows(self, asked: Asked) -> bool:
        """Whether the operation may go on. Anything but `True`, and any error, denies it.

        Raise `OperationDenied` to give a reason of your own. It may read its own tables; it runs before the operation
        and outside of its transaction.
        """


class DjangoPermissions:
    """The default: trusted code and trusted tools may do everything, a user needs the operation's permission."""

    def allows(self, asked: Asked) -> bool:
        """Whether the actor is trusted, or an active user with the permission."""
        actor = asked.actor
        if actor is None:
            return True
        if isinstance(actor, str):
            return bool(actor.strip())
        if not actor.is_authenticated:
            raise _denied(asked, "nobody is logged in")
        permission = PERMISSIONS[asked.operation]
        # A user model without permissions has no `has_perm`; its users may do nothing.
        has_perm: Any = getattr(actor, "has_perm", None)
        if has_perm is None or not has_perm(permission):
            raise _denied(asked, f"the permission {permission} is missing")
        return True


def authorize(
    actor: Actor,
    operation: Operation,
    *,
    thread_id: str | None = None,
    submission_id: UUID | None = None,
    approval_id: UUID | None = None,
) -> str:
    """Asks the authorizer, and returns the actor's name for what is written down.

    Raises `OperationDenied` with the operation and a reason. An authorizer that fails has not allowed anything.
    """
    asked = Asked(
        operation=operation, actor=actor, thread_id=thread_id, submission_id=submission_id, approval_id=approval_id
    )
    try:
        allowed = _authorizer(get_settings().authorizer).allows(asked)
    except OperationDenied as denied:
        raise _denied(asked, denied.reason) from denied
    except INTERRUPTIONS:
        raise
    except Exception as error:
        raise _denied(asked, f"the authorizer failed: {described(error)}") from error
    if allowed is not True:
        raise _denied(asked, "the authorizer does not allow it")
    return name_of(actor)


def may(actor: Actor, operation: Operation, *, thread_id: str | None = None) -> bool:
    """Whether the authorizer allows it: for a place that shows less, instead of nothing, to who may not."""
    try:
        authorize(actor, operation, thread_id=thread_id)
    except OperationDenied:
        return False
    return True


def reason_given(operation: Operation, reason: str) -> str:
    """The reason of a change, which is kept beside the actor's name. Raises `OperationDenied` if there is none."""
    said = bounded(reason.strip(), MAX_SAID)
    if not said:
        raise OperationDenied(operation=operation, reason="it needs a reason, which is kept")
    return said


def name_of(actor: Actor) -> str:
    """How an actor is written down."""
    if actor is None:
        return SYSTEM
    name = actor if isinstance(actor, str) else actor.get_username()
    return bounded(name.strip(), MAX_ACTOR)


@lru_cache(maxsize=8)
def _authorizer(path: str) -> OperationAuthorizer:
    made: OperationAuthorizer = import_string(path)()
    return made


def _denied(asked: Asked, reason: str) -> OperationDenied:
    return OperationDenied(operation=asked.operation, reason=reason)
