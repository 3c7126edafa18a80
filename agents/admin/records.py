"""The log, record by record, each with the facts of its batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from agents.admin import links, tables
from agents.admin.filters import FamilyFilter, SequenceFilter, ThreadFilter
from agents.admin.inspecting import InspectedAdmin, Section
from agents.models import LogRecord, Submission
from agents.records import ThreadCreated
from maintenance.admin.display import NOTHING, exact_moment, owner_words
from maintenance.admin.readonly import looked_at

AROUND = 5
"""Records before and after one on its page."""

_SUBMISSION = re.compile(r"^(?:[a-z-]+:)(?:run:)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?::|$)")


@admin.register(LogRecord)
class LogRecordAdmin(InspectedAdmin):
    """What happened, as it was recorded. Appended once, never changed."""

    payload_columns = ("text",)
    list_display = ("sequence", "family", "record_id", "thread_link", "submission_link", "appended")
    list_filter = (FamilyFilter, ThreadFilter, SequenceFilter)
    search_help_text = "A whole thread id; in the list of one thread, a whole record id."
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("thread_link", "sequence", "family", "record_id", "submission_link", "when")}),
        ("Content", {"fields": ("text_shown",)}),
        ("Batch", {"fields": ("batch_name", "batch_records", "producer", "epoch", "previous", "digest")}),
    )
    readonly_fields = (
        "thread_link",
        "submission_link",
        "when",
        "text_shown",
        "batch_name",
        "batch_records",
        "producer",
        "epoch",
        "previous",
        "digest",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(at_text=tables.AT)
        return rows

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Inside a thread by sequence, which has an index there; over all threads by age."""
        if not request.GET.get("thread"):
            return ("-pk",)
        return ("sequence",) if request.GET.get("from") else ("-sequence",)

    def searched(self, term: str, thread_id: str | None) -> Q:
        return Q(record_id=term) if thread_id else Q(thread_id=term)

    def sections(self, request: HttpRequest, row: LogRecord) -> Iterator[Section]:
        near = LogRecord.objects.filter(
            thread_id=row.thread_id, sequence__gte=row.sequence - AROUND, sequence__lte=row.sequence + AROUND
        )
        yield tables.Beside(self, request, looked_at(row)).records(
            near.order_by("sequence"),
            name="around",
            title="Around it",
            more_url=links.list_url(LogRecord, thread=row.thread_id),
            more="The whole log of the thread",
        )

    @admin.display(description="thread")
    def thread_link(self, row: LogRecord) -> SafeString:
        return links.thread(row.thread_id)

    @admin.display(description="submission")
    def submission_link(self, row: LogRecord) -> SafeString | str:
        found = None if row.family == ThreadCreated.family else _SUBMISSION.match(row.record_id)
        return NOTHING if found is None else links.to_page(Submission, found[1], f"…{found[1][-12:]}")

    @admin.display(description="appended")
    def appended(self, row: Any) -> SafeString | str:
        return tables.appended(row.at_text, looked_at(row))

    @admin.display(description="appended")
    def when(self, row: Any) -> SafeString | str:
        return tables.appended(row.at_text, looked_at(row), exact_moment)

    @admin.display(description="record")
    def text_shown(self, row: LogRecord) -> SafeString | str:
        return self.payload(row, "text")

    @admin.display(description="batch")
    def batch_name(self, row: LogRecord) -> str:
        return row.batch.batch_id

    @admin.display(description="records")
    def batch_records(self, row: LogRecord) -> str:
        return f"{row.batch.first_sequence} to {row.batch.last_sequence}"

    @admin.display(description="appended by")
    def producer(self, row: LogRecord) -> SafeString | str:
        return owner_words(row.batch.producer)

    @admin.display(description="epoch of its lease")
    def epoch(self, row: LogRecord) -> str:
        return str(row.batch.epoch) if row.batch.epoch else "none: appended with an admission"

    @admin.display(description="digest of the log before")
    def previous(self, row: LogRecord) -> str:
        return row.batch.previous_digest

    @admin.display(description="digest of the log after")
    def digest(self, row: LogRecord) -> str:
        return row.batch.digest
