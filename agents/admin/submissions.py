"""Submissions: where each stands and why, who tried, what it called, whom it asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agents import records
from agents.admin import links, payloads, search, tables
from agents.admin.acting import ActingAdmin, allowed
from agents.admin.filters import OutcomeFilter, StateFilter, ThreadFilter, WaitFilter
from agents.admin.inspecting import InspectedAdmin, Section
from agents.models import AbortIntent, Approval, Attempt, LogRecord, Submission, ToolCall
from agents.operations.authorize import Actor, Operation
from agents.operations.deciding import abort
from agents.operations.explain import explain
from agents.operations.retry import retry
from agents.states import State, Wait
from maintenance.admin.display import NOTHING, exact_moment, moment
from maintenance.admin.readonly import looked_at
from maintenance.admin.reasoned import ReasonedAction
from maintenance.errors import described
from maintenance.models import ThreadMaintenance

REACH = 1_000
"""Places of the queue behind a host within which those that joined it are looked for."""


def _abort(row: Submission, *, actor: Actor, reason: str) -> bool:
    return not abort(row.pk, actor=actor, reason=reason).replayed


def _retry(row: Submission, *, actor: Actor, reason: str) -> bool:
    retry(row.pk, actor=actor, reason=reason)
    return True


RETRY = ReasonedAction(
    name="retry",
    label="Retry now",
    explanation="The thread's next pass becomes due now and looks at the submission again. It overrides nothing: "
    "what must not be tried before a moment waits for it, and what waits for a person still does.",
    perform=_retry,
    unchanged="left alone",
    applies=lambda row: row.state not in {State.SETTLED, State.UNKNOWN} and row.waits_for != Wait.APPROVAL,
)
ABORT = ReasonedAction(
    name="abort",
    label="Abort",
    explanation="The submission is settled as aborted by the next pass; if it runs now, at its next boundary. "
    "What it has done stays done, and a call that is open then stays unknown. A run that completes first stays "
    "completed.",
    perform=_abort,
    unchanged="had been asked to end before: that request stands",
    applies=lambda row: row.state not in {State.SETTLED, State.JOINED} and not hasattr(row, "abort_intent"),
)


@admin.register(Submission)
class SubmissionAdmin(ActingAdmin, InspectedAdmin):
    """Every accepted piece of work."""

    reasoned_actions = (RETRY, ABORT)
    payload_columns = ("input",)
    joined_rows = ("abort_intent",)
    list_display = ("number", "thread_link", "agent", "standing", "waits", "attempts", "accepted", "ended")
    list_filter = (ThreadFilter, StateFilter, WaitFilter, OutcomeFilter)
    # Ids begin with their time.
    ordering = ("-pk",)
    search_help_text = (
        "An id or its beginning (8 digits or more), or a whole thread id; in the list of one thread, a whole key or "
        "principal."
    )
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("id", "thread_link", "maintenance", "queue_sequence", "agent", "standing", "waits")}),
        ("Acceptance", {"fields": ("principal", "idempotency_key", "created", "input_shown", "input_digest")}),
        ("Run", {"fields": ("attempts", "first_record", "host_link", "aborted")}),
        ("Settlement", {"fields": ("settled", "settlement")}),
    )
    readonly_fields = (
        "thread_link",
        "maintenance",
        "standing",
        "waits",
        "created",
        "input_shown",
        "first_record",
        "host_link",
        "aborted",
        "settled",
        "settlement",
    )

    def searched(self, term: str, thread_id: str | None) -> Q:
        if thread_id:
            return search.either(search.by_id(term), Q(idempotency_key=term), Q(principal=term))
        return search.either(search.by_id(term), Q(thread_id=term))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return allowed(request, Operation.RETRY)

    def has_abort_permission(self, request: HttpRequest) -> bool:
        return allowed(request, Operation.ABORT)

    # --- The page of a submission ---------------------------------------------------------------

    def sentence(self, request: HttpRequest, row: Submission) -> str:
        try:
            return explain(row.pk, actor=request.user).sentence
        except Exception as error:  # noqa: BLE001 - the page must open for a thread whose log is damaged, most of all
            return f"Why it stands where it does cannot be told: {described(error)}"

    def sections(self, request: HttpRequest, row: Submission) -> Iterator[Section]:
        now, beside = looked_at(row), tables.Beside(self, request, looked_at(row))
        if self.may_list(request, Approval):
            asked = Approval.objects.filter(submission=row).order_by("-pk")[: tables.RECENT]
            more = links.list_url(Approval, submission=row.pk)
            section = beside.approvals(
                asked, name="approvals", title="Approvals", more_url=more, more="All its approvals"
            )
            # Most submissions ask nobody.
            yield from [section] if section.rows else []
        if self.may_list(request, ToolCall):
            calls = ToolCall.objects.filter(submission=row).order_by("-pk")[: tables.RECENT]
            more = links.list_url(ToolCall, submission=row.pk)
            yield beside.calls(calls, name="calls", title="Tool calls", more_url=more, more="All its tool calls")
        if self.may_list(request, Attempt):
            tried = Attempt.objects.filter(submission=row).order_by("-number")[: tables.RECENT]
            more = links.list_url(Attempt, submission=row.pk)
            yield tables.attempts(tried, now, name="attempts", title="Attempts", more_url=more, more="All its attempts")
        joined = list(_joined(row))
        if joined:
            yield tables.submissions(joined, {}, now, name="joined", title="Joined this run")
        if row.first_sequence is not None and self.may_list(request, LogRecord):
            part = LogRecord.objects.filter(thread_id=row.thread_id, sequence__gte=row.first_sequence)
            more = links.list_url(LogRecord, **{"thread": row.thread_id, "from": row.first_sequence})
            yield beside.records(
                part.order_by("sequence")[: tables.LOGGED],
                name="log",
                title="The log from its input on",
                more_url=more,
                more="The log from there on",
            )

    # --- Cells ----------------------------------------------------------------------------------

    @admin.display(description="submission")
    def number(self, row: Submission) -> str:
        return f"#{row.queue_sequence}"

    @admin.display(description="thread")
    def thread_link(self, row: Submission) -> SafeString:
        return links.thread(row.thread_id)

    @admin.display(description="maintenance")
    def maintenance(self, row: Submission) -> SafeString:
        return links.to_page(ThreadMaintenance, row.thread_id, "deadline, lease and passes of the thread")

    @admin.display(description="state")
    def standing(self, row: Submission) -> SafeString:
        return tables.standing(row)

    @admin.display(description="waits for")
    def waits(self, row: Submission) -> SafeString | str:
        if not row.waits_for:
            return NOTHING
        what = f"{row.get_waits_for_display()} {row.waits_on}".strip()
        if row.wake_at is None:
            return what
        return format_html("{}<br>{}", what, moment(row.wake_at, looked_at(row)))

    @admin.display(description="accepted")
    def accepted(self, row: Submission) -> SafeString | str:
        return moment(row.created_at, looked_at(row))

    @admin.display(description="settled")
    def ended(self, row: Submission) -> SafeString | str:
        return moment(row.settled_at, looked_at(row))

    @admin.display(description="accepted")
    def created(self, row: Submission) -> SafeString | str:
        return exact_moment(row.created_at, looked_at(row))

    @admin.display(description="settled")
    def settled(self, row: Submission) -> SafeString | str:
        return exact_moment(row.settled_at, looked_at(row))

    @admin.display(description="input")
    def input_shown(self, row: Submission) -> SafeString | str:
        return self.payload(row, "input")

    @admin.display(description="input in the log")
    def first_record(self, row: Submission) -> SafeString | str:
        found = _record(row, records.input_id(row.pk))
        return NOTHING if found is None else links.to(found, f"record {found.sequence}")

    @admin.display(description="joined the run of")
    def host_link(self, row: Submission) -> SafeString | str:
        return NOTHING if row.host is None else links.submission(row.host)

    @admin.display(description="abort")
    def aborted(self, row: Submission) -> SafeString | str:
        intent = getattr(row, "abort_intent", None)
        if not isinstance(intent, AbortIntent):
            return NOTHING
        asked = links.to(intent, f"asked for by {intent.author}")
        return format_html("{} {}: {}", asked, moment(intent.requested_at, looked_at(row)), intent.reason)

    @admin.display(description="settlement record")
    def settlement(self, row: Submission) -> SafeString | str:
        found = _record(row, records.settlement_id(row.pk))
        if found is None:
            return NOTHING
        shown = payloads.block(found.text) if getattr(row, "payload_shown", False) else payloads.hidden()
        return format_html("{}{}", links.to(found, f"record {found.sequence} "), shown)


def _record(row: Submission, record_id: str) -> LogRecord | None:
    return LogRecord.objects.filter(thread_id=row.thread_id, record_id=record_id).defer("text").first()


def _joined(row: Submission) -> list[Submission]:
    """Those that joined its run: they came soon after it. (No index knows hosts.)"""
    behind = Submission.objects.filter(
        thread_id=row.thread_id,
        queue_sequence__gt=row.queue_sequence,
        queue_sequence__lte=row.queue_sequence + REACH,
        host=row,
    )
    return list(behind.defer("input").order_by("queue_sequence")[: tables.MOST_OPEN])
