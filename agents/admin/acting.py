"""Actions of agents: each goes through its service, which asks the authorizer and writes the audit row."""

from __future__ import annotations

from django.http import HttpRequest

from agents.operations.authorize import PERMISSIONS, Actor, Operation
from maintenance.admin.reasoned import ReasonedActionsAdmin


class ActingAdmin(ReasonedActionsAdmin):
    """An action is offered to who has its operation's permission; the service asks again, for this very user."""

    def actor_of(self, request: HttpRequest) -> Actor:
        return request.user


def allowed(request: HttpRequest, operation: Operation) -> bool:
    """Whether the user has the permission of an operation."""
    return request.user.has_perm(PERMISSIONS[operation])
