"""The database: does it answer, is its time ours, is a commit durable."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from maintenance import clock
from maintenance.checks import APP_LABELS
from maintenance.doctor.findings import Finding, error, info, ok, warning
from maintenance.errors import kind_of

TOLERATED_SKEW = timedelta(seconds=1)

_SETTINGS = (
    "synchronous_commit",
    "synchronous_standby_names",
    "fsync",
    "full_page_writes",
    "transaction_isolation",
    "lock_timeout",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
)
_LIMITS = _SETTINGS[-3:]


def reach() -> list[Finding]:
    """Whether the database answers at all."""
    try:
        connection.ensure_connection()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError) as problem:
        text = f"The database does not answer ({kind_of(problem)}). Nothing is accepted and no pass runs."
        return [error("database.reach", text, "Start it, or correct DATABASES (in this project: DATABASE_URL).")]
    return [ok("database.reach", f"The database answers ({connection.vendor}).")]


def migrations() -> list[Finding]:
    """Whether the tables are those that this release reads."""
    executor = MigrationExecutor(connection)
    targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] in APP_LABELS]
    missing = [f"{step.app_label}.{step.name}" for step, _ in executor.migration_plan(targets)]
    if missing:
        return [error("database.migrations", f"Not migrated: {', '.join(missing)}.", "Run: manage.py migrate")]
    return [ok("database.migrations", "All migrations are applied.")]


def examine() -> list[Finding]:
    """Clock, durability, isolation."""
    return [_skew(), *(_postgresql() if connection.vendor == "postgresql" else _sqlite())]


def _skew() -> Finding:
    before = timezone.now()
    there = clock.now()
    after = timezone.now()
    skew = there - (before + (after - before) / 2)
    text = f"The database's clock is {abs(skew.total_seconds()):.3f} s {'ahead of' if skew > timedelta() else 'behind'}"
    text += " this machine's."
    if abs(skew) <= TOLERATED_SKEW:
        return ok("database.clock", text)
    hint = (
        "Synchronise the clocks (NTP). Deadlines are the database's, so nothing is lost, but hints come early or late."
    )
    return warning("database.clock", text, hint)


def _postgresql() -> list[Finding]:
    found = _show(_SETTINGS)
    return [
        _durability(found),
        _replication(found),
        _isolation(found["transaction_isolation"]),
        _limits(found),
        *_writable(),
    ]


def _durability(found: dict[str, str]) -> Finding:
    told = ", ".join(f"{name}={found[name]}" for name in ("synchronous_commit", "fsync", "full_page_writes"))
    unsafe = [name for name in ("synchronous_commit", "fsync", "full_page_writes") if found[name] == "off"]
    if unsafe:
        text = f"A crash of the database may lose accepted work ({told})."
        hint = f"Turn {' and '.join(unsafe)} on for the role and the server: a receipt means durable."
        return error("database.durability", text, hint)
    return ok("database.durability", f"A commit is durable on this server ({told}).")


def _replication(found: dict[str, str]) -> Finding:
    standbys, level = found["synchronous_standby_names"], found["synchronous_commit"]
    if not standbys:
        text = "No synchronous standby (synchronous_standby_names is empty): a failover may lose the last commits."
        hint = "After a failover run: manage.py maintenance ensure --after-failover"
        return info("database.replication", text, hint)
    if level == "local":
        text = f"Commits do not wait for the synchronous standbys {standbys!r} (synchronous_commit=local)."
        return warning("database.replication", text, "Set synchronous_commit to on for the role that Wakeful uses.")
    return ok("database.replication", f"Commits wait for the synchronous standbys {standbys!r}.")


def _isolation(level: str) -> Finding:
    if level == "read committed":
        return ok("database.isolation", "Transactions are read committed.")
    text = f"Transactions are {level}, not read committed."
    return error("database.isolation", text, "Leave the isolation level alone: row locks must show the newest row.")


def _limits(found: dict[str, str]) -> Finding:
    """A connection pooler may drop the options of a connection, and the limits with them."""
    missing = [name for name in _LIMITS if found[name] == "0"]
    if not missing:
        told = ", ".join(f"{name}={found[name]}" for name in _LIMITS)
        return ok("database.limits", f"No statement and no lock waits without end ({told}).")
    text = f"No limit is set for {', '.join(missing)}: one session that hangs holds up everybody who needs its rows."
    hint = (
        "Set them as options of the connection or, behind a pooler, on the role, for one: "
        f"ALTER ROLE name IN DATABASE name SET {missing[0]} = '2s' (docs/operating.md, Behind a connection pooler)."
    )
    return warning("database.limits", text, hint)


def _writable() -> list[Finding]:
    if not _one("SELECT pg_is_in_recovery()"):
        return []
    text = "This server is a standby: it cannot be written to."
    return [error("database.primary", text, "Point DATABASES (here: DATABASE_URL) at the primary.")]


def _sqlite() -> list[Finding]:
    journal, synchronous = _one("PRAGMA journal_mode"), int(_one("PRAGMA synchronous"))
    in_memory = journal == "memory"
    findings = [
        ok("database.durability", "A commit is on disk (synchronous is FULL or stricter).")
        if synchronous >= 2
        else error(
            "database.durability",
            "A loss of power may lose accepted work (synchronous is below FULL).",
            "Run PRAGMA synchronous=FULL on each connection (OPTIONS, init_command).",
        )
    ]
    if journal != "wal" and not in_memory:
        text = f"The journal is {journal!r}, so readers and writers wait for each other."
        findings.append(warning("database.journal", text, "Run PRAGMA journal_mode=WAL (OPTIONS, init_command)."))
    return findings


def _show(names: tuple[str, ...]) -> dict[str, str]:
    columns = ", ".join("current_setting(%s)" for _ in names)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns}", names)
        return dict(zip(names, cursor.fetchone(), strict=True))


def _one(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]
