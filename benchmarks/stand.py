"""Where a run takes place: a database of its own, and a Redis database that was empty and is left empty."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

import psycopg
import redis

MARK = "wakeful:benchmark"
"""The key that says: what this Redis database holds was left by a benchmark and may be deleted."""


class Unfit(Exception):
    """The environment cannot carry a benchmark; the text says what to set."""


@dataclass(frozen=True, slots=True)
class Stand:
    """The services of this run, and a folder for the logs of its workers."""

    database_url: str
    broker_url: str
    folder: Path

    @property
    def log(self) -> Path:
        """What the workers write."""
        return self.folder / "workers.log"

    @property
    def redis(self) -> redis.Redis:
        """A connection to the broker's own database."""
        return redis.Redis.from_url(self.broker_url)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a worker process."""
        return {**os.environ, **(extra or {})}

    def empty_broker(self) -> None:
        """Deletes every message and leaves the mark."""
        with self.redis as client:
            client.flushdb()
            client.set(MARK, os.getpid())

    def queue_length(self, queue: str) -> int:
        """Messages that wait in a queue."""
        with self.redis as client:
            return int(client.llen(queue))


@contextmanager
def raised() -> Iterator[Stand]:
    """Makes the database, points this process at it, and drops it afterwards. Raises `Unfit`."""
    server, broker = _services()
    name = f"wakeful_bench_{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="wakeful-bench-"))
    stand = Stand(urlunsplit(server._replace(path=f"/{name}")), broker, folder)
    _claim_broker(stand)
    _on_server(urlunsplit(server), f'CREATE DATABASE "{name}"')
    try:
        _point_this_process_at(stand)
        yield stand
    finally:
        _close_connections()
        _on_server(urlunsplit(server), f'DROP DATABASE "{name}" WITH (FORCE)')
        with stand.redis as client:
            client.flushdb()
        shutil.rmtree(folder, ignore_errors=True)


def _services() -> tuple[SplitResult, str]:
    server = urlsplit(os.environ.get("DATABASE_URL", ""))
    broker = os.environ.get("BROKER_URL", "")
    if not server.scheme.startswith("postgres"):
        raise Unfit("DATABASE_URL must name a database on a PostgreSQL server, where this run makes its own.")
    if not broker.startswith("redis"):
        raise Unfit("BROKER_URL must name an empty Redis database, as redis://localhost:6379/9.")
    return server, broker


def _claim_broker(stand: Stand) -> None:
    with stand.redis as client:
        if client.dbsize() and not client.exists(MARK):
            raise Unfit("The Redis database of BROKER_URL is not empty, and a run empties it: name another one.")
    stand.empty_broker()


def _on_server(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def _point_this_process_at(stand: Stand) -> None:
    os.environ |= {
        "DATABASE_URL": stand.database_url,
        "BROKER_URL": stand.broker_url,
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "SECRET_KEY": os.environ.get("SECRET_KEY", "benchmark"),
        "WAKEFUL_VAR": str(stand.folder),
        "LOG_LEVEL": os.environ.get("LOG_LEVEL", "WARNING"),
    }
    import django  # noqa: PLC0415 - settings read the environment that was made above
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


def _close_connections() -> None:
    from django.db import connections  # noqa: PLC0415

    connections.close_all()
