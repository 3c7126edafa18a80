"""What the work is about, shown only to who may see it: inputs, arguments, results, records."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agents import canonical
from maintenance.admin.display import NOTHING

PERMISSION = "wakeful_agents.view_payload"

HIDDEN = f"hidden: needs the permission {PERMISSION}"

LONGEST = 20_000
"""Characters of one payload on a page; who needs more exports the log."""


def may_view(user: AbstractBaseUser | AnonymousUser) -> bool:
    """Whether this user may see payloads."""
    has_perm: Any = getattr(user, "has_perm", None)
    return has_perm is not None and bool(has_perm(PERMISSION))


def hidden() -> SafeString:
    """What stands in place of a payload."""
    return format_html('<span class="wakeful-quiet">{}</span>', HIDDEN)


def block(text: str) -> SafeString | str:
    """Stored JSON text, indented and cut to `LONGEST` characters."""
    if not text:
        return NOTHING
    # A text that is cut anyway is not parsed first: it may be long, and it is no JSON any more.
    shown = _indented(text) if len(text) <= LONGEST else text
    rest = len(shown) - LONGEST
    cut = format_html('<p class="wakeful-more">{} more characters are not shown.</p>', f"{rest:,}") if rest > 0 else ""
    return format_html('<pre class="wakeful-payload" tabindex="0">{}</pre>{}', shown[:LONGEST], cut)


def _indented(text: str) -> str:
    try:
        return json.dumps(canonical.parse(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
