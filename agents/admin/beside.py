"""Attempts, events and abort intents."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Q
from django.utils.safestring import SafeString

from agents.admin import links, tables
from agents.admin.filters import EndingFilter, SubmissionFilter, TakenFilter, ThreadFilter, ThreadOfSubmissionFilter
from agents.admin.inspecting import InspectedAdmin, OfSubmissionAdmin
from agents.models import AbortIntent, Attempt, Event
from maintenance.admin.display import NOTHING, exact_moment, moment, owner_words
from maintenance.admin.readonly import looked_at
from maintenance.wording import spoken_precisely


@admin.register(Attempt)
class AttemptAdmin(OfSubmissionAdmin):
    """Who tried to advance which submission, and how that ended."""

    list_display = ("number", "submission_link", "thread_link", "outcome", "started", "took", "epoch", "process")
    list_filter = (EndingFilter, ThreadOfSubmissionFilter, SubmissionFilter)
    fields = (
        "submission_link",
        "thread_link",
        "number",
        "outcome",
        "began",
        "ended",
        "took",
        "epoch",
        "process",
        "began_after",
    )
    readonly_fields = ("submission_link", "thread_link", "outcome", "began", "ended", "took", "process")

    @admin.display(description="ending")
    def outcome(self, row: Attempt) -> SafeString:
        return tables.running(row)

    @admin.display(description="started")
    def started(self, row: Attempt) -> SafeString | str:
        return moment(row.started_at, looked_at(row))

    @admin.display(description="started")
    def began(self, row: Attempt) -> SafeString | str:
        return exact_moment(row.started_at, looked_at(row))

    @admin.display(description="ended")
    def ended(self, row: Attempt) -> SafeString | str:
        return exact_moment(row.ended_at, looked_at(row))

    @admin.display(description="took")
    def took(self, row: Attempt) -> str:
        return NOTHING if row.ended_at is None else spoken_precisely(row.ended_at - row.started_at)

    @admin.display(description="process")
    def process(self, row: Attempt) -> SafeString | str:
        return owner_words(row.owner)


@admin.register(Event)
class EventAdmin(InspectedAdmin):
    """What the outside told threads."""

    joined_rows = ("taken_by",)
    payload_columns = ("payload", "taken_by__input")
    list_display = ("name", "thread_link", "key", "taken", "received")
    list_filter = (TakenFilter, ThreadFilter)
    ordering = ("-pk",)
    search_help_text = "A whole thread id; in the list of one thread, a whole event name."
    fields = ("name", "thread_link", "key", "received_full", "taken", "payload_shown_here")
    readonly_fields = ("thread_link", "received_full", "taken", "payload_shown_here")

    def searched(self, term: str, thread_id: str | None) -> Q:
        return Q(name=term) if thread_id else Q(thread_id=term)

    @admin.display(description="thread")
    def thread_link(self, row: Event) -> SafeString:
        return links.thread(row.thread_id)

    @admin.display(description="taken by")
    def taken(self, row: Event) -> SafeString | str:
        return "nobody yet" if row.taken_by is None else links.submission(row.taken_by)

    @admin.display(description="received")
    def received(self, row: Event) -> SafeString | str:
        return moment(row.received_at, looked_at(row))

    @admin.display(description="received")
    def received_full(self, row: Event) -> SafeString | str:
        return exact_moment(row.received_at, looked_at(row))

    @admin.display(description="payload")
    def payload_shown_here(self, row: Event) -> SafeString | str:
        return self.payload(row, "payload")


@admin.register(AbortIntent)
class AbortIntentAdmin(OfSubmissionAdmin):
    """Who asked for the end of which submission, and why."""

    list_display = ("abort", "submission_link", "thread_link", "came_to", "author", "requested")
    list_filter = (ThreadOfSubmissionFilter, SubmissionFilter)
    fields = ("submission_link", "thread_link", "came_to", "author", "reason", "requested_full")
    readonly_fields = ("submission_link", "thread_link", "came_to", "requested_full")

    @admin.display(description="abort")
    def abort(self, row: AbortIntent) -> SafeString:
        return links.short(row.pk)

    @admin.display(description="came to")
    def came_to(self, row: AbortIntent) -> SafeString:
        return tables.standing(row.submission)

    @admin.display(description="asked for")
    def requested(self, row: AbortIntent) -> SafeString | str:
        return moment(row.requested_at, looked_at(row))

    @admin.display(description="asked for")
    def requested_full(self, row: AbortIntent) -> SafeString | str:
        return exact_moment(row.requested_at, looked_at(row))
