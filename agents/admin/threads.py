"""Threads: what each owes and why it does not move, whom it asks, what it has recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.safestring import SafeString

from agents.admin import links, tables
from agents.admin.filters import OPEN, unanswered
from agents.admin.inspecting import InspectedAdmin, Section
from agents.models import Approval, Event, LogRecord, Submission, Thread, ToolCall
from agents.operations.explain import Explanation, explain_thread
from agents.states import State
from maintenance.admin.display import exact_moment, moment
from maintenance.admin.readonly import looked_at
from maintenance.errors import described
from maintenance.models import ThreadMaintenance
from maintenance.wording import counted


@admin.register(Thread)
class ThreadAdmin(InspectedAdmin):
    """The owners of a queue and a log."""

    list_display = ("thread_id", "tail_sequence", "accepted", "created")
    # The primary key's index answers the order, the search and nothing else would.
    ordering = ("thread_id",)
    sortable_by = ("thread_id",)
    search_help_text = "The beginning of a thread id, in its own case."
    fields = ("thread_id", "maintenance", "accepted", "tail_sequence", "tail_digest", "created_at_full", "told")
    readonly_fields = ("maintenance", "accepted", "created_at_full", "told")

    def searched(self, term: str, thread_id: str | None) -> Q:
        del thread_id
        return Q(thread_id__startswith=term)

    # --- The page of a thread -------------------------------------------------------------------

    def sentence(self, request: HttpRequest, row: Thread) -> str:
        try:
            found = explain_thread(row.pk, actor=request.user)
        except Exception as error:  # noqa: BLE001 - the page must open for a thread whose log is damaged, most of all
            return f"Why it stands where it does cannot be told: {described(error)}"
        row.__dict__["explained"] = {each.submission_id: each for each in found}
        if not found:
            return "Nothing is owed."
        behind = f" ({counted(len(found) - 1, 'more submission', 'more submissions')} behind it)" if found[1:] else ""
        return f"Submission #{found[0].queue_sequence}{behind}: {found[0].sentence}"

    def sections(self, request: HttpRequest, row: Thread) -> Iterator[Section]:
        beside = tables.Beside(self, request, looked_at(row))
        if self.may_list(request, Submission):
            yield from self._submissions(row)
        if self.may_list(request, Approval):
            asked = Approval.objects.filter(OPEN_SUBMISSION, submission__thread_id=row.pk, decision="")
            yield beside.approvals(
                asked.order_by("requested_at")[: tables.MOST_OPEN],
                name="approvals",
                title="Open approvals",
                more_url=links.list_url(Approval, thread=row.pk),
                more="All approvals of this thread",
            )
        if self.may_list(request, ToolCall):
            unknown = ToolCall.objects.filter(unanswered(), submission__thread_id=row.pk)
            yield beside.calls(
                unknown.order_by("updated_at")[: tables.MOST_OPEN],
                name="calls",
                title="Unknown calls that wait for an answer",
                more_url=links.list_url(ToolCall, thread=row.pk),
                more="All tool calls of this thread",
            )
        if self.may_list(request, LogRecord):
            records = LogRecord.objects.filter(thread_id=row.pk).order_by("-sequence")
            yield beside.records(
                records[: tables.LOGGED],
                name="log",
                title="The end of the log",
                more_url=links.list_url(LogRecord, thread=row.pk),
                more="The whole log",
                empty="Nothing is recorded yet.",
            )

    def _submissions(self, row: Thread) -> Iterator[Section]:
        now, mine = looked_at(row), Submission.objects.filter(thread_id=row.pk).defer("input")
        explained: dict[Any, Explanation] = row.__dict__.get("explained", {})
        said = {pk: each.sentence for pk, each in explained.items()}
        more = links.list_url(Submission, thread=row.pk)
        owed = mine.filter(OPEN).order_by("queue_sequence")[: tables.MOST_OPEN]
        yield tables.submissions(
            owed,
            said,
            now,
            name="owed",
            title="Owed",
            empty="Nothing is owed.",
            more_url=f"{more}&state=open",
            more="All that is owed",
        )
        done = mine.filter(state=State.SETTLED).order_by("-queue_sequence")[: tables.RECENT]
        yield tables.settled(
            done, now, name="settled", title="Settled last", more_url=more, more="All submissions of this thread"
        )

    # --- Cells ----------------------------------------------------------------------------------

    @admin.display(description="maintenance")
    def maintenance(self, row: Thread) -> SafeString:
        return links.to_page(ThreadMaintenance, row.pk, "deadline, lease and passes")

    @admin.display(description="accepted submissions")
    def accepted(self, row: Thread) -> int:
        return row.next_queue_sequence - 1

    @admin.display(description="created")
    def created(self, row: Thread) -> SafeString | str:
        return moment(row.created_at, looked_at(row))

    @admin.display(description="created")
    def created_at_full(self, row: Thread) -> SafeString | str:
        return exact_moment(row.created_at, looked_at(row))

    @admin.display(description="events")
    def told(self, row: Thread) -> SafeString:
        url = links.list_url(Event, thread=row.pk)
        return links.anchor(url, "what the outside told it")


OPEN_SUBMISSION = ~Q(submission__state=State.SETTLED)
"""Narrows rows of a submission to the index of the unsettled: a thread may have a long past."""
