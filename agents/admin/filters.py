"""Filters that an index answers, or that look at the newest rows alone and say so."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest

from agents.models import ApprovalDecision, CallStatus, ResolutionKind, ToolKind, UnknownResolution
from agents.records import FAMILIES
from agents.states import Ending, Outcome, State, Wait
from maintenance.admin.filters import Choices, KnownValuesFilter

NEWEST = 100_000
"""Rows that a filter without an index looks at, from the newest on."""

OPEN = ~Q(state=State.SETTLED)
"""The condition of the index of unsettled submissions, word for word."""


class GivenFilter(admin.SimpleListFilter):
    """Narrows a list to what a link named; shown only while it does."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        del model_admin
        value = request.GET.get(self.parameter_name or "")
        return [(value, value)] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        del request
        value = self.value()
        if not value:
            return queryset
        # PostgreSQL refuses a text with a NUL.
        return queryset.none() if "\x00" in value else self.narrowed(queryset, value)

    def narrowed(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """The rows of what was named."""
        raise NotImplementedError


class ThreadFilter(GivenFilter):
    """Rows that name their thread."""

    title = "thread"
    parameter_name = "thread"

    def narrowed(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(thread_id=value)


class ThreadOfSubmissionFilter(ThreadFilter):
    """Rows that name a submission of the thread."""

    def narrowed(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(submission__thread_id=value)


class SubmissionFilter(GivenFilter):
    """Rows of one submission."""

    title = "submission"
    parameter_name = "submission"

    def narrowed(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        try:
            return queryset.filter(submission_id=UUID(value))
        except ValueError:
            return queryset.none()


class SequenceFilter(GivenFilter):
    """Records from a place of the log on."""

    title = "from sequence"
    parameter_name = "from"

    def narrowed(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(sequence__gte=int(value)) if value.isdecimal() and len(value) < 19 else queryset.none()


class AmongNewestFilter(KnownValuesFilter):
    """Known values of a field without an index: a list that nothing else narrows is looked through from its end."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value not in self.values:
            return queryset
        found = queryset.filter(self.condition(value))
        return found if is_narrowed(request) else among_newest(found)

    def condition(self, value: str) -> Q:
        """The rows of a value."""
        return Q((self.field, value))


def is_narrowed(request: HttpRequest) -> bool:
    """Whether an index has cut the list down already."""
    return any(request.GET.get(name) for name in ("q", "thread", "submission"))


def among_newest(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Those of the newest `NEWEST` rows of the table, whose primary keys grow with time."""
    keys = rows.model._default_manager.order_by("-pk").values_list("pk", flat=True)  # noqa: SLF001
    oldest = keys[NEWEST : NEWEST + 1].first()
    return rows if oldest is None else rows.filter(pk__gt=oldest)


_TITLE = f"{{}} (newest {NEWEST:,})"


class StateFilter(KnownValuesFilter):
    """Submissions by state; the index of the unsettled answers."""

    title = "state"
    parameter_name = "state"
    values = ("open", *State.values)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        del request
        value = self.value()
        if value not in self.values:
            return queryset
        if value == State.SETTLED:
            return queryset.filter(state=value)
        return queryset.filter(OPEN) if value == "open" else queryset.filter(OPEN, state=value)


class WaitFilter(KnownValuesFilter):
    """Suspended submissions by what they wait for; the index of the unsettled answers."""

    title = "waiting for"
    parameter_name = "waits_for"
    values = tuple(Wait.values)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        del request
        value = self.value()
        return queryset.filter(OPEN, waits_for=value) if value in self.values else queryset


class OutcomeFilter(AmongNewestFilter):
    """Settled submissions by outcome."""

    title = _TITLE.format("outcome")
    parameter_name = field = "outcome"
    values = tuple(Outcome.values)


class EndingFilter(AmongNewestFilter):
    """Attempts by how they ended."""

    title = _TITLE.format("ending")
    parameter_name = field = "ending"
    values = ("open", *Ending.values)

    def condition(self, value: str) -> Q:
        return Q(ending="" if value == "open" else value)


class KindFilter(AmongNewestFilter):
    """Tool calls by kind."""

    title = _TITLE.format("kind")
    parameter_name = field = "kind"
    values = tuple(ToolKind.values)


def unanswered() -> Q:
    """Unknown calls that somebody is waited for: their submission is owed and nobody has said anything."""
    answers = UnknownResolution.objects.filter(tool_call=OuterRef("pk"), tries=OuterRef("tries"))
    return Q(status=CallStatus.UNKNOWN) & ~Q(submission__state=State.SETTLED) & ~Q(Exists(answers))


class StatusFilter(AmongNewestFilter):
    """Tool calls by status; unknown ones have an index."""

    title = _TITLE.format("status")
    parameter_name = field = "status"
    UNANSWERED = "unanswered"
    values = (UNANSWERED, *CallStatus.values)

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        choices = dict(super().lookups(request, model_admin))
        return list({**choices, self.UNANSWERED: "Unknown, unanswered"}.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == self.UNANSWERED:
            return queryset.filter(unanswered())
        if self.value() == CallStatus.UNKNOWN:
            return queryset.filter(status=CallStatus.UNKNOWN)
        return super().queryset(request, queryset)


class DecisionFilter(AmongNewestFilter):
    """Approvals by decision; open ones have an index."""

    title = _TITLE.format("decision")
    parameter_name = field = "decision"
    OPEN = "open"
    values = (OPEN, *ApprovalDecision.values)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == self.OPEN:
            return queryset.filter(decision="")
        return super().queryset(request, queryset)


class ResolutionFilter(AmongNewestFilter):
    """Answers about unknown calls by what they say."""

    title = _TITLE.format("resolution")
    parameter_name = field = "resolution"
    values = tuple(ResolutionKind.values)


class TakenFilter(AmongNewestFilter):
    """Events by whether a run has taken them."""

    title = _TITLE.format("taken")
    parameter_name = "taken"
    values: ClassVar[tuple[str, ...]] = ("yes", "no")

    def condition(self, value: str) -> Q:
        return Q(taken_by__isnull=value == "no")


class FamilyFilter(AmongNewestFilter):
    """Records by family."""

    title = _TITLE.format("family")
    parameter_name = field = "family"
    values = tuple(dict.fromkeys(family for family, _ in FAMILIES))
