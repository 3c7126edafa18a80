"""Tool calls and what became of them; for an unknown one, the form that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db.models import Model
from django.http import HttpRequest
from django.utils.safestring import SafeString

from agents import canonical
from agents.admin import links, tables
from agents.admin.acting import ActingAdmin, allowed
from agents.admin.filters import (
    KindFilter,
    ResolutionFilter,
    StatusFilter,
    SubmissionFilter,
    ThreadOfSubmissionFilter,
)
from agents.admin.inspecting import OfSubmissionAdmin, Section
from agents.conf import get_settings
from agents.models import CallStatus, LogRecord, ResolutionKind, ToolCall, UnknownResolution
from agents.operations.authorize import Actor, Operation
from agents.operations.deciding import resolve_unknown
from agents.records import call_id, run_id
from maintenance.admin.display import exact_moment, moment, state
from maintenance.admin.readonly import looked_at
from maintenance.admin.reasoned import ReasonedAction, ReasonForm


class ResolutionForm(ReasonForm):
    """What became of the call, checked before anything is written."""

    field_order = ("resolution", "result", "error", "reason")

    resolution = forms.ChoiceField(
        choices=[(kind.value, f"{kind.value}: {kind.label}") for kind in ResolutionKind],
        widget=forms.RadioSelect,
        help_text="Look at the other system first. What is said here is recorded for good.",
    )
    result = forms.CharField(
        required=False,
        widget=AdminTextareaWidget(attrs={"rows": 4}),
        help_text="For completed-with-result alone: what the tool would have returned, as JSON. null is a result.",
    )
    error = forms.CharField(
        required=False,
        max_length=4_000,
        widget=AdminTextareaWidget(attrs={"rows": 2}),
        help_text="For failed-with-error alone: the text of the error that the run is told.",
    )
    shown = forms.CharField(required=False, widget=forms.HiddenInput)
    """Which try of each call the person was shown: an answer about an earlier one is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What became of it comes first, then why.
        self.fields["reason"].widget.attrs.pop("autofocus", None)

    def clean_result(self) -> str:
        """The result as canonical JSON text, or nothing."""
        text: str = self.cleaned_data["result"].strip()
        if not text:
            return ""
        try:
            encoded = canonical.encode(json.loads(text, parse_constant=_refused))
        except RecursionError:
            raise forms.ValidationError("It is nested too deeply.") from None
        except canonical.NotJson as error:
            raise forms.ValidationError(f"This cannot be recorded as JSON: {error}.") from None
        except ValueError as error:
            raise forms.ValidationError(f"This is not JSON: {error}.") from None
        size, maximum = canonical.size(encoded), get_settings().max_step_result_bytes
        if size > maximum:
            raise forms.ValidationError(f"It has {size:,} bytes; at most {maximum:,} are allowed.")
        return encoded

    def clean(self) -> dict[str, Any]:
        """Each resolution takes what it needs and nothing else."""
        said = super().clean() or {}
        kind = said.get("resolution")
        for name, wanted in (("result", ResolutionKind.COMPLETED), ("error", ResolutionKind.FAILED)):
            if kind is None or name not in said:
                continue
            given = said[name].strip()
            if kind == wanted and not given:
                self.add_error(name, f"{wanted.value} needs it.")
            if kind != wanted and given:
                self.add_error(name, f"Only {wanted.value} takes it; {kind} does not.")
        return said


def _refused(constant: str) -> Any:
    message = f"{constant} is no JSON"
    raise ValueError(message)


def _resolve(row: ToolCall, *, actor: Actor, reason: str, resolution: str, result: str, error: str, shown: str) -> bool:
    kind = ResolutionKind(resolution)
    answered = resolve_unknown(
        row.submission_id,
        row.call,
        kind,
        actor=actor,
        reason=reason,
        result=_result(kind, result, error),
        turn=row.turn,
        tries=_tries(shown).get(str(row.pk)),
    )
    return not answered.replayed


def _result(kind: ResolutionKind, result: str, error: str) -> Any:
    if kind is ResolutionKind.COMPLETED:
        return canonical.parse(result)
    return error.strip() if kind is ResolutionKind.FAILED else None


def _tries(shown: str) -> dict[str, int]:
    pairs = (each.partition(":") for each in shown.split())
    return {pk: int(tries) for pk, _, tries in pairs if tries.isdecimal()}


RESOLVE = ReasonedAction(
    name="resolve",
    label="Say what became of it",
    explanation="Nobody can tell whether this call had its effect. Look at the other system, then say what you found. "
    "Once every unknown call of the submission is answered, its run goes on: with your result, with your error, or "
    "by making the call again. The answer is recorded for good.",
    perform=_resolve,
    unchanged="had been answered like this before: that answer stands",
    applies=lambda row: row.status == CallStatus.UNKNOWN and row.submission.outcome == "",
    form=ResolutionForm,
)


@admin.register(ToolCall)
class ToolCallAdmin(ActingAdmin, OfSubmissionAdmin):
    """Every call that a run has made."""

    reasoned_actions = (RESOLVE,)
    payload_columns = ("arguments", "submission__input")
    list_display = ("call", "tool", "kind", "standing", "submission_link", "thread_link", "tries", "since")
    list_filter = (StatusFilter, KindFilter, ThreadOfSubmissionFilter, SubmissionFilter)
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("thread_link", "submission_link", "tool", "call", "turn", "kind")}),
        ("Where it stands", {"fields": ("standing", "unknown_reason", "tries", "prepared", "updated")}),
        ("Arguments", {"fields": ("arguments_shown",)}),
    )
    readonly_fields = ("thread_link", "submission_link", "standing", "prepared", "updated", "arguments_shown")

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return allowed(request, Operation.RESOLVE_UNKNOWN)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Oldest first where somebody is waited for; the index of unknown calls has that order."""
        waiting = {StatusFilter.UNANSWERED, CallStatus.UNKNOWN.value}
        return ("updated_at", "pk") if request.GET.get("status") in waiting else ("-pk",)

    def name_of(self, obj: Model) -> str:
        return links.call_name(obj) if isinstance(obj, ToolCall) else str(obj)

    def details_of(self, request: HttpRequest, obj: Model) -> str:
        del request
        return self.arguments_shown(obj)  # type: ignore[arg-type]

    def initial_for(self, action: ReasonedAction, objects: Sequence[Model]) -> dict[str, Any]:
        del action
        return {"shown": " ".join(f"{row.pk}:{row.tries}" for row in objects if isinstance(row, ToolCall))}

    def sections(self, request: HttpRequest, row: ToolCall) -> Iterator[Section]:
        now = looked_at(row)
        if self.may_list(request, UnknownResolution):
            answers = row.resolutions.order_by("-pk").defer("result")[: tables.RECENT]
            yield Section(
                name="answers",
                title="What people said",
                columns=("Try", "Answer", "By", "Reason", "Said"),
                rows=[
                    (one.tries, links.to(one, one.resolution), one.author, one.reason, moment(one.created_at, now))
                    for one in answers
                ],
            )
        if self.may_list(request, LogRecord):
            mine = LogRecord.objects.filter(thread_id=row.submission.thread_id, record_id__in=_record_ids(row))
            yield tables.Beside(self, request, now).records(
                mine.order_by("sequence"), name="log", title="Its records in the log"
            )

    @admin.display(description="status")
    def standing(self, row: ToolCall) -> SafeString:
        return state(row.status)

    @admin.display(description="since")
    def since(self, row: ToolCall) -> SafeString | str:
        return moment(row.updated_at, looked_at(row))

    @admin.display(description="prepared")
    def prepared(self, row: ToolCall) -> SafeString | str:
        return exact_moment(row.prepared_at, looked_at(row))

    @admin.display(description="so since")
    def updated(self, row: ToolCall) -> SafeString | str:
        return exact_moment(row.updated_at, looked_at(row))

    @admin.display(description="arguments")
    def arguments_shown(self, row: ToolCall) -> SafeString | str:
        return self.payload(row, "arguments")


SHOWN_TRIES = 10
_KINDS = ("tool-prepared", "tool-settled", "tool-unknown", "tool-resolved")


def _record_ids(row: ToolCall) -> list[str]:
    """The ids of the records of its newest tries."""
    run, first = run_id(row.submission_id), max(1, row.tries - SHOWN_TRIES + 1)
    return [call_id(kind, run, row.turn, tries, row.call) for tries in range(first, row.tries + 1) for kind in _KINDS]


@admin.register(UnknownResolution)
class UnknownResolutionAdmin(OfSubmissionAdmin):
    """What people said about unknown calls. Written once."""

    joined_rows = ("tool_call__submission",)
    payload_columns = ("result", "tool_call__arguments", "tool_call__submission__input")
    list_display = ("said", "call_link", "submission_link", "thread_link", "tries", "author", "created")
    list_filter = (ResolutionFilter,)
    fields = (
        "said",
        "thread_link",
        "submission_link",
        "call_link",
        "tries",
        "result_shown",
        "author",
        "reason",
        "created",
    )
    readonly_fields = ("said", "thread_link", "submission_link", "call_link", "result_shown", "created")

    @admin.display(description="answer")
    def said(self, row: UnknownResolution) -> str:
        return row.resolution

    @admin.display(description="call")
    def call_link(self, row: UnknownResolution) -> SafeString:
        return links.to(row.tool_call, f"{row.tool_call.tool} ({row.tool_call.call})")

    @admin.display(description="submission")
    def submission_link(self, row: UnknownResolution) -> SafeString:
        return links.submission(row.tool_call.submission)

    @admin.display(description="thread")
    def thread_link(self, row: UnknownResolution) -> SafeString:
        return links.thread(row.tool_call.submission.thread_id)

    @admin.display(description="result or error")
    def result_shown(self, row: UnknownResolution) -> SafeString | str:
        return self.payload(row, "result")

    @admin.display(description="said")
    def created(self, row: UnknownResolution) -> SafeString | str:
        return exact_moment(row.created_at, looked_at(row))
