"""The common ground of the pages: what is hidden, what is beside a row, how a term is looked up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import BooleanField, Model, Q, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from agents.admin import links, payloads, search
from agents.models import Submission
from maintenance.admin.display import NOTHING
from maintenance.admin.readonly import ReadOnlyAdmin
from maintenance.admin.reasoned import ReasonedActionsAdmin

Cell = SafeString | str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table below the fields of a page."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str = "None."
    more_url: str = ""
    more: str = ""

    def shown(self) -> list[list[Cell]]:
        """The cells, with a dash where there is nothing."""
        return [[NOTHING if cell in {None, ""} else cell for cell in row] for row in self.rows]


class InspectedAdmin(ReadOnlyAdmin):
    """Read-only, linked, and without payloads for who may not see them."""

    change_form_template = "admin/wakeful_agents/inspected.html"
    payload_columns: ClassVar[tuple[str, ...]] = ()
    """Long columns that are read only where they are shown."""
    joined_rows: ClassVar[tuple[str, ...]] = ()
    """Rows that are read together with the own one."""

    class Media:
        css = {"all": ["wakeful_maintenance/admin.css", "wakeful_agents/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows without payloads; each knows whether this user may see them."""
        may_view = Value(payloads.may_view(request.user), output_field=BooleanField())
        rows: QuerySet[Any] = super().get_queryset(request).annotate(payload_shown=may_view)
        joined = rows.select_related(*self.joined_rows) if self.joined_rows else rows
        return joined.defer(*self.payload_columns)

    # --- Search ---------------------------------------------------------------------------------

    # Django asks for them before it shows a search box; `searched` is what is asked of the database.
    search_fields: ClassVar[tuple[str, ...]] = ("pk",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(self.searched(term, thread_id=request.GET.get("thread"))), False

    def searched(self, term: str, thread_id: str | None) -> Q:
        """What the term may mean; inside a thread, what it may mean there."""
        raise NotImplementedError

    # --- The page of a row ----------------------------------------------------------------------

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        context: dict[str, Any] = {}
        if row is not None and self.has_view_permission(request, row):
            context = {
                "sentence": self.sentence(request, row),
                "sections": list(self.sections(request, row)),
                "reasoned_actions": self.actions_of(request, row),
            }
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def sentence(self, request: HttpRequest, row: Any) -> str:
        """What stands above everything else."""
        del request, row
        return ""

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        """What stands below the fields."""
        del request, row
        return ()

    def actions_of(self, request: HttpRequest, row: Model) -> list[Any]:
        """What this user may do about the row."""
        return self.actions_for(request, row) if isinstance(self, ReasonedActionsAdmin) else []

    def may_list(self, request: HttpRequest, model: type[Model]) -> bool:
        """Whether rows of another model may stand on this page."""
        return self.admin_site.get_model_admin(model).has_view_permission(request)

    def act_links(self, request: HttpRequest, row: Model) -> SafeString | str:
        """The actions on a row of another model, for its line on this page."""
        other = self.admin_site.get_model_admin(type(row))
        if not isinstance(other, ReasonedActionsAdmin):
            return ""
        offered = other.actions_for(request, row)
        shown = ((each.label, url) for each, url in offered)
        return format_html_join(" ", '<a class="wakeful-act" href="{1}">{0}</a>', shown)

    # --- Cells ----------------------------------------------------------------------------------

    def payload(self, row: Any, column: str) -> SafeString | str:
        """A payload column, if this user may see it; it is read from the database only then."""
        return payloads.block(getattr(row, column)) if row.payload_shown else payloads.hidden()


class OfSubmissionAdmin(InspectedAdmin):
    """Rows that belong to a submission: newest first, found by its id or by their thread."""

    ordering = ("-pk",)
    joined_rows: ClassVar[tuple[str, ...]] = ("submission",)
    payload_columns: ClassVar[tuple[str, ...]] = ("submission__input",)
    search_help_text = "The id of a submission or its beginning (8 digits or more), or a whole thread id."

    def searched(self, term: str, thread_id: str | None) -> Q:
        del thread_id
        # One subquery instead of two conditions on two tables, of which no index could answer either.
        meant = Submission.objects.filter(search.either(search.by_id(term), Q(thread_id=term)))
        return Q(submission__in=meant.values("pk"))

    @admin.display(description="submission")
    def submission_link(self, row: Any) -> SafeString:
        return links.submission(row.submission)

    @admin.display(description="thread")
    def thread_link(self, row: Any) -> SafeString:
        return links.thread(row.submission.thread_id)
