"""An admin that shows and never edits, and whose lists stay cheap over millions of rows."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import DateTimeField, Model, QuerySet, Value
from django.db.models.constants import LOOKUP_SEP
from django.http import Http404, HttpRequest

from maintenance import clock

if TYPE_CHECKING:  # generic for the type checker only
    _Paginator = Paginator[Any]
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _Paginator, _ModelAdmin = Paginator, admin.ModelAdmin

MOST_LISTED = 10_000
"""Rows that a list counts and pages through; whoever looks for more wants a filter."""


class CappedPaginator(_Paginator):
    """Counts no further than it lists: the count of a million rows costs as much as reading them."""

    @cached_property
    def count(self) -> int:
        return min(self._seen, MOST_LISTED)

    @property
    def is_capped(self) -> bool:
        """Whether there are more rows than the list shows."""
        return self._seen > MOST_LISTED

    @cached_property
    def _seen(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by()[: MOST_LISTED + 1].count()


class CappedChangeList(ChangeList):
    """Knows whether its count was cut, for `pagination.html` of this app."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """The rows of the list. Not found, if a filter asks for what no database stores."""
        lookups = [values for name, values in self.filter_params.items() if LOOKUP_SEP in name]
        if any("\x00" in value for values in lookups for value in values):
            raise Http404
        rows: QuerySet[Any] = super().get_queryset(request, *args, **kwargs)
        return rows

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        paginator = self.paginator
        self.is_capped = isinstance(paginator, CappedPaginator) and paginator.is_capped
        self.most_listed = f"{MOST_LISTED:,}"
        narrowed = bool(self.query or self.filter_params)
        self.estimate = estimated_rows(self.root_queryset) if self.is_capped and not narrowed else None


class ReadOnlyAdmin(_ModelAdmin):
    """Nobody adds, changes or deletes: editing storage is never the repair path."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    # Most columns have no index: sorting by them would read the whole table.
    sortable_by: ClassVar[tuple[str, ...]] = ()

    class Media:
        css = {"all": ["wakeful_maintenance/admin.css"]}
        js = ["wakeful_maintenance/countdown.js"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        del request, obj
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        del request, kwargs
        return CappedChangeList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The row of a page. Not found, if no database can store such a key, and PostgreSQL not even look for it."""
        if "\x00" in object_id:
            raise Http404
        return super().get_object(request, object_id, from_field)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows, each with the database's time of this look as `looked_at`."""
        now = Value(clock.now(), output_field=DateTimeField())
        annotated: QuerySet[Any] = super().get_queryset(request).annotate(looked_at=now)
        return annotated


def looked_at(obj: Model) -> datetime:
    """When the row was read, by the database's clock; one value for the whole page."""
    at: datetime = getattr(obj, "looked_at", None) or clock.now()
    return at


def estimated_rows(rows: QuerySet[Any]) -> str | None:
    """About how many rows the table has, from the planner's statistics; `None` if nobody knows."""
    connection = connections[rows.db]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        table = rows.model._meta.db_table  # noqa: SLF001 - Django's public `_meta`
        cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", [table])
        found = cursor.fetchone()
    return f"{found[0]:,}" if found and found[0] > MOST_LISTED else None
