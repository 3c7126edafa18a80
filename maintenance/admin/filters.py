"""Filters that an index or the capped count can answer; none asks the table for its distinct values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from maintenance import clock, status

Choices = list[tuple[str, str]]

CONDITIONS: dict[str, tuple[str, Callable[[datetime], Q]]] = {
    "dirty": ("Dirty", lambda now: status.DIRTY),  # noqa: ARG005 - one signature for all
    "overdue": ("Overdue", lambda now: status.overdue(now, status.usual_lateness())),
    "leased": ("Leased", status.leased),
    "stalled": ("Stalled", lambda now: status.STALLED),  # noqa: ARG005
    "failing": ("Failing", lambda now: status.FAILING),  # noqa: ARG005
    "quarantined": ("Quarantined", lambda now: status.QUARANTINED),  # noqa: ARG005
    "paused": ("Paused", lambda now: status.PAUSED),  # noqa: ARG005
}
"""Choice → its label and the condition as of a moment."""


class ConditionFilter(admin.SimpleListFilter):
    """Threads in one condition that an operator looks for."""

    title = "condition"
    parameter_name = "condition"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        del request, model_admin
        return [(name, label) for name, (label, _) in CONDITIONS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        del request
        found = CONDITIONS.get(self.value() or "")
        return queryset if found is None else queryset.filter(found[1](clock.now()))


class KnownValuesFilter(admin.SimpleListFilter):
    """One field, by values that are known beforehand."""

    field: ClassVar[str] = ""
    values: ClassVar[tuple[str, ...]] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        del request, model_admin
        return [(value, value.replace("_", " ").capitalize()) for value in self.values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        del request
        value = self.value()
        return queryset.filter(Q((self.field, value))) if value in self.values else queryset


class OutcomeFilter(KnownValuesFilter):
    """Passes by how they ended."""

    title = "outcome"
    parameter_name = field = "outcome"
    values = ("ran", "failed", "interrupted", "lease_lost", "worker_lost")


class PhaseFilter(KnownValuesFilter):
    """Passes by whether canonical work ran."""

    title = "phase"
    parameter_name = field = "phase"
    values = ("actionable", "caught-up")


class ActionFilter(KnownValuesFilter):
    """Operator actions by kind."""

    title = "action"
    parameter_name = field = "action"
    values = ("force_pass", "wake", "pause", "resume", "release", "after_failover")
