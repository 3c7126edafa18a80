"""Moments inside records: UTC, ISO 8601 with milliseconds, so that their text is canonical."""

from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings
from django.utils import timezone


def moment(at: datetime) -> str:
    """The text of a moment; a naive one is taken as local, as Django stores it without `USE_TZ`."""
    aware = at if timezone.is_aware(at) else timezone.make_aware(at)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parsed(text: str) -> datetime:
    """The moment of a text, in the form that Django's fields hold."""
    aware = datetime.fromisoformat(text)
    return aware if settings.USE_TZ else timezone.make_naive(aware)
