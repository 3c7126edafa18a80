"""How the admin shows moments, owners, links and reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from maintenance import owner
from maintenance.wording import spoken

NOTHING = "–"


def moment(at: datetime | None, now: datetime, *, promised: bool = False) -> SafeString | str:
    """A moment as relative text; a script makes it live. `promised`: it stands out once it has passed."""
    if at is None:
        return NOTHING
    return format_html(
        '<time class="wakeful-moment{}" datetime="{}" data-now="{}" title="{}">{}</time>',
        " wakeful-promised" * promised + " wakeful-late" * (promised and at <= now),
        at.isoformat(),
        now.isoformat(),
        _exact(at),
        f"in {spoken(at - now)}" if at > now else f"{spoken(now - at)} ago",
    )


def exact_moment(at: datetime | None, now: datetime) -> SafeString | str:
    """As `moment`, with the date and time in full beside it: for a page about one thing."""
    return NOTHING if at is None else format_html("{} ({})", _exact(at), moment(at, now))


def state(name: str) -> SafeString:
    """A state or an outcome; its word tells, the colour only repeats it."""
    return format_html(
        '<span class="wakeful-state wakeful-{}">{}</span>', name.replace("_", "-"), name.replace("_", " ")
    )


def thread_link(thread_id: str) -> SafeString:
    """A link to the page of a thread, which also tells if there is none."""
    url = reverse("admin:wakeful_maintenance_threadmaintenance_change", args=[quote(thread_id)])
    return format_html('<a href="{}">{}</a>', url, thread_id)


def owner_words(text: str) -> SafeString | str:
    """Which process, and whether it runs where this page was made; the identity in full as its title."""
    if not text:
        return NOTHING
    parsed = owner.parse(text)
    if parsed is None:
        return text
    where = "here" if parsed.machine == owner.machine() else f"on {parsed.machine[:8]}"
    return format_html('<span class="wakeful-owner" title="{}">pid {} {}</span>', text, parsed.pid, where)


def report(stored: Mapping[str, Any] | None) -> SafeString | str:
    """A stored report, key by key on one line."""
    if not stored:
        return NOTHING
    return format_html_join(", ", "{}: {}", ((key.replace("_", " "), value) for key, value in stored.items()))


def _exact(at: datetime) -> str:
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    return local.strftime("%Y-%m-%d %H:%M:%S %Z").strip()
