"""Approvals: what is asked, with which arguments, by which submission; approve or deny with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agents.admin import links
from agents.admin.acting import ActingAdmin, allowed
from agents.admin.filters import DecisionFilter, SubmissionFilter, ThreadOfSubmissionFilter
from agents.admin.inspecting import OfSubmissionAdmin
from agents.models import Approval, ApprovalDecision
from agents.operations.authorize import Actor, Operation, name_of
from agents.operations.deciding import resolve_approval
from maintenance.admin.display import NOTHING, exact_moment, moment, state
from maintenance.admin.readonly import looked_at
from maintenance.admin.reasoned import ReasonedAction


def _deciding(decision: ApprovalDecision) -> Callable[..., bool]:
    def decide(row: Approval, *, actor: Actor, reason: str) -> bool:
        """`False` if it had been decided like this before: the first decision and its reason stand."""
        decided = resolve_approval(row.pk, decision, actor=actor, reason=reason, digest=row.digest)
        return row.decision == "" and decided.resolver == name_of(actor)

    return decide


def _is_open(row: Approval) -> bool:
    return row.decision == "" and (row.expires_at is None or row.expires_at > looked_at(row))


APPROVE = ReasonedAction(
    name="approve",
    label="Approve",
    explanation="The submission goes on and does what it asked about, with exactly these arguments. An approval is "
    "decided once and serves once; nobody can take it back.",
    perform=_deciding(ApprovalDecision.APPROVED),
    unchanged="had been approved before: that decision stands",
    applies=_is_open,
)
DENY = ReasonedAction(
    name="deny",
    label="Deny",
    explanation="The submission goes on and is told no, with your reason. What it then does is up to its code; what "
    "it asked about is not done. Nobody can take the decision back.",
    perform=_deciding(ApprovalDecision.DENIED),
    unchanged="had been denied before: that decision stands",
    applies=_is_open,
)


@admin.register(Approval)
class ApprovalAdmin(ActingAdmin, OfSubmissionAdmin):
    """Questions to people."""

    reasoned_actions = (APPROVE, DENY)
    payload_columns = ("arguments", "submission__input")
    list_display = ("tool", "name", "decided", "submission_link", "thread_link", "asked", "expires", "decided_by")
    list_filter = (DecisionFilter, ThreadOfSubmissionFilter, SubmissionFilter)
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("id", "thread_link", "submission_link", "name")}),
        ("What is asked", {"fields": ("tool", "arguments_shown", "digest", "asked_at", "expiry")}),
        ("Decision", {"fields": ("decided", "decided_by", "reason", "when_decided")}),
    )
    readonly_fields = (
        "thread_link",
        "submission_link",
        "arguments_shown",
        "asked_at",
        "expiry",
        "decided",
        "when_decided",
    )

    def has_approve_permission(self, request: HttpRequest) -> bool:
        return allowed(request, Operation.RESOLVE_APPROVAL)

    def has_deny_permission(self, request: HttpRequest) -> bool:
        return allowed(request, Operation.RESOLVE_APPROVAL)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Oldest first where somebody is waited for; the index of open questions has that order."""
        return ("requested_at", "pk") if request.GET.get("decision") == DecisionFilter.OPEN else ("-pk",)

    def name_of(self, obj: Model) -> str:
        return links.approval_name(obj) if isinstance(obj, Approval) else str(obj)

    def details_of(self, request: HttpRequest, obj: Model) -> str:
        del request
        return self.arguments_shown(obj)  # type: ignore[arg-type]

    @admin.display(description="decision")
    def decided(self, row: Approval) -> SafeString:
        return state(row.decision or "undecided")

    @admin.display(description="arguments")
    def arguments_shown(self, row: Approval) -> SafeString | str:
        return self.payload(row, "arguments")

    @admin.display(description="asked")
    def asked(self, row: Approval) -> SafeString | str:
        return moment(row.requested_at, looked_at(row))

    @admin.display(description="expires")
    def expires(self, row: Approval) -> SafeString | str:
        return moment(row.expires_at, looked_at(row), promised=row.decision == "")

    @admin.display(description="asked")
    def asked_at(self, row: Approval) -> SafeString | str:
        return exact_moment(row.requested_at, looked_at(row))

    @admin.display(description="expires")
    def expiry(self, row: Approval) -> SafeString | str:
        if row.expires_at is None:
            return "never"
        gone = row.decision == "" and row.expires_at <= looked_at(row)
        note = format_html(" {}", "expired: nobody can decide it any more") if gone else ""
        return format_html("{}{}", exact_moment(row.expires_at, looked_at(row)), note)

    @admin.display(description="decided")
    def when_decided(self, row: Approval) -> SafeString | str:
        return NOTHING if row.decided_at is None else exact_moment(row.decided_at, looked_at(row))
