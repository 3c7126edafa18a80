"""Links between the pages of agents and to those of maintenance."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from agents.models import Approval, Submission, Thread, ToolCall


def to(obj: Model, text: object) -> SafeString:
    """A link to the page of a row."""
    return to_page(type(obj), obj.pk, text)


def to_page(model: type[Model], pk: Any, text: object) -> SafeString:
    """The same without the row; the page says so if there is none."""
    return anchor(page_url(model, pk), text)


def page_url(model: type[Model], pk: Any) -> str:
    """Where the page of a row is."""
    return reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_change", args=[quote(str(pk))])  # noqa: SLF001


def list_url(model: type[Model], **query: Any) -> str:
    """The list of a model, narrowed."""
    url = reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_changelist")  # noqa: SLF001 - Django's public `_meta`
    return f"{url}?{urlencode(query)}"


def anchor(url: str, text: object) -> SafeString:
    """A link to anywhere."""
    return format_html('<a href="{}">{}</a>', url, text)


def thread(thread_id: str) -> SafeString:
    """A link to a thread's page, by its id."""
    return to_page(Thread, thread_id, thread_id)


def submission(row: Submission) -> SafeString:
    """A link to a submission by its place in a queue that the reader knows."""
    return to(row, f"{row.agent} #{row.queue_sequence}")


def short(pk: UUID) -> SafeString:
    """An id whose end tells it from its neighbours: those of one second begin alike."""
    return format_html('<span title="{}">…{}</span>', pk, str(pk)[-12:])


def call_name(call: ToolCall) -> str:
    """A call among all of them."""
    return f"{call.tool} ({call.call}) of {call.submission}"


def approval_name(approval: Approval) -> str:
    """A question among all of them."""
    return f"{approval.tool} ({approval.name}) of {approval.submission}"
