"""The doctor: everything that may keep work from being done, looked at once, in bounded time.

It writes nothing and declares nothing. A part that cannot be looked at becomes a finding; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import DatabaseError, InterfaceError

from maintenance.doctor import broker, configuration, database, work
from maintenance.doctor.findings import Finding, Level, error
from maintenance.errors import kind_of

log = structlog.get_logger("wakeful.maintenance")

__all__ = ["Finding", "Level", "examine"]


def examine() -> list[Finding]:
    """All findings, in the order in which one would look: settings, database, broker, work."""
    reached = _guarded("database.reach", database.reach)
    database_answers = all(finding.level is not Level.ERROR for finding in reached)
    findings = _guarded("checks", lambda: configuration.examine(with_database=database_answers))
    findings += reached
    ready = database_answers
    if database_answers:
        findings += _guarded("database", database.examine)
        migrations = _guarded("database.migrations", database.migrations)
        ready = all(finding.level is not Level.ERROR for finding in migrations)
        findings += migrations
    findings += _guarded("broker", broker.examine)
    if ready:
        findings += _guarded("work", work.examine)
    return findings


def _guarded(subject: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except (DatabaseError, InterfaceError) as problem:
        hint = "Look at the database's log; then run the doctor again."
        return [error(subject, f"The database refused the look ({kind_of(problem)}).", hint)]
    except Exception as problem:
        log.exception("doctor.part_failed", part=subject)
        hint = "This is a fault of Wakeful or of a library: report it with the traceback in the log."
        return [error(subject, f"This part could not be examined ({kind_of(problem)}).", hint)]
