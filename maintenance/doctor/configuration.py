"""The system checks, as the doctor tells them."""

from __future__ import annotations

from django.core import checks
from django.db import router

from maintenance.doctor.findings import Finding, Level, ok
from maintenance.models import ThreadMaintenance


def examine(*, with_database: bool) -> list[Finding]:
    """What `manage.py check` finds, also with a look at the database's own settings if it answers."""
    databases = [router.db_for_write(ThreadMaintenance)] if with_database else None
    found = [message for message in checks.run_checks(databases=databases) if not message.is_silenced()]
    return [_finding(message) for message in found] or [ok("checks", "The system checks find nothing.")]


def _finding(message: checks.CheckMessage) -> Finding:
    hint = message.hint or "See Django's reference of system checks for this id."
    return Finding(id=message.id or "checks", level=_level(message), text=message.msg, hint=hint)


def _level(message: checks.CheckMessage) -> Level:
    if message.level >= checks.ERROR:
        return Level.ERROR
    return Level.WARNING if message.level >= checks.WARNING else Level.INFO
