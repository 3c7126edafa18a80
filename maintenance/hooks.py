"""The ports in force: built once per process from the settings, replaced as one value in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from maintenance import clock
from maintenance.conf import get_settings
from maintenance.errors import INTERRUPTIONS, traced
from maintenance.ports import (
    BeginHead,
    InertLedger,
    InertMessageDelivery,
    InertProjection,
    InertRuntime,
    Ledger,
    MessageDelivery,
    Projection,
    Publication,
    Runtime,
)
from maintenance.rearm import earliest

log = structlog.get_logger("wakeful.maintenance")

LONG = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a pass calls. Every member defaults to its inert form."""

    runtime: Runtime = field(default_factory=InertRuntime)
    ledger: Ledger = field(default_factory=InertLedger)
    publication: tuple[Publication, ...] = ()
    projection: Projection = field(default_factory=InertProjection)
    messages: MessageDelivery = field(default_factory=InertMessageDelivery)

    @property
    def sinks(self) -> tuple[Publication, ...]:
        """The sinks that want anything."""
        return tuple(sink for sink in self.publication if not sink.inert)

    @property
    def leave_the_database(self) -> bool:
        """Whether some hook may touch the network before the runtime's first synchronous commit."""
        return bool(self.sinks) or not self.messages.inert or not self.projection.inert

    @property
    def may_begin_relaxed(self) -> bool:
        """Whether a pass may begin with an asynchronous commit.

        Only if user code cannot run before a synchronous commit of that pass: a database crash that loses the begin
        then loses nothing but a lease, and the row is still due.
        """
        return self.runtime.commits_before_user_code and not self.leave_the_database

    @property
    def begin_head(self) -> BeginHead | None:
        """How the begin of a pass begins its head too; `None` if the runtime does not, or another hook comes first."""
        return None if self.leave_the_database else self.runtime.begin_head

    def publication_deadline(self, thread_id: str) -> datetime | None:
        """The earliest deadline over all sinks."""
        return earliest(*(sink.pending_deadline(thread_id) for sink in self.sinks))

    def gate_deadline(self, thread_id: str) -> datetime | None:
        """The deadline that holds canonical work back, over the sinks that gate execution."""
        return earliest(*(sink.gate_deadline(thread_id) for sink in self.sinks if sink.gates_execution))

    def pending_deadline(self, thread_id: str) -> datetime | None:
        """The earliest deadline over publication, messages and projection.

        A projection that cannot say counts as due: a broken disposable index gets a retry and stops nothing.
        """
        messages = None if self.messages.inert else self.messages.pending_deadline(thread_id)
        return earliest(self.publication_deadline(thread_id), messages, self._guarded_projection(thread_id))

    def due(self, thread_id: str, now: datetime) -> list[str]:
        """The classes of the ports that have a deadline which has come, for people."""
        deadlines = {type(sink).__name__: sink.pending_deadline(thread_id) for sink in self.sinks}
        if not self.messages.inert:
            deadlines[type(self.messages).__name__] = self.messages.pending_deadline(thread_id)
        deadlines[type(self.projection).__name__] = self._guarded_projection(thread_id)
        return sorted(name for name, at in deadlines.items() if at is not None and at <= now)

    def _guarded_projection(self, thread_id: str) -> datetime | None:
        if self.projection.inert:
            return None
        try:
            return self.projection.pending_deadline(thread_id)
        except INTERRUPTIONS:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            log.error("projection.deadline_unavailable", thread=thread_id, exception=traced(error))
            # Long due: at exactly now, a caller who read the time before would take it for the future.
            return clock.now() - LONG


_hooks: Hooks | None = None
_replacement: Hooks | None = None


def current() -> Hooks:
    """The hooks of this process."""
    global _hooks  # noqa: PLW0603 - built lazily, once per process, after fork
    if _replacement is not None:
        return _replacement
    if _hooks is None:
        _hooks = _from_settings()
    return _hooks


@contextmanager
def installed(hooks: Hooks) -> Iterator[Hooks]:
    """Replaces the hooks of this process for a test, whatever its settings say meanwhile."""
    global _replacement  # noqa: PLW0603
    before, _replacement = _replacement, hooks
    try:
        yield hooks
    finally:
        _replacement = before


def _from_settings() -> Hooks:
    settings = get_settings()
    return Hooks(
        runtime=import_string(settings.runtime)(),
        ledger=import_string(settings.ledger)(),
        publication=tuple(import_string(path)() for path in settings.publication),
        projection=import_string(settings.projection)(),
        messages=import_string(settings.messages)(),
    )


def _forget(*, setting: str, **_: Any) -> None:
    global _hooks  # noqa: PLW0603
    if setting == "MAINTENANCE":
        _hooks = None


setting_changed.connect(_forget)
