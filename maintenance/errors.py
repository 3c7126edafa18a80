"""The error family of Wakeful: one base, few kinds, texts that are safe to show.

The raw text of a foreign exception (a database, a broker, a hook of the host) is never part of a message:
it may contain payloads or secrets. What a person sees is our sentence plus the *kind* of the cause.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from celery.exceptions import SoftTimeLimitExceeded
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError

MAX_MESSAGE = 8_192
"""Longest message of an error, in characters."""

MAX_REASON = 4_096
"""Longest reason of a denial, in characters."""

_DATABASES = {"django", "psycopg", "sqlite3"}
"""Packages whose errors quote rows."""

_SAFE_NAME = re.compile(r"[^A-Za-z0-9_.]")


class WakefulError(Exception):
    """Base of every error that Wakeful raises on purpose; `str()` of it is bounded and redacted."""

    def __init__(self, message: str) -> None:
        self.message = bounded(message)
        super().__init__(self.message)

    def also(self, other: WakefulError) -> None:
        """Adds what else failed, which this error would hide."""
        self.message = bounded(f"{self.message}; and {other.message}")
        self.args = (self.message,)


class DurableAlarmError(WakefulError):
    """A slot or generation operation failed; nothing of it was written.

    `operation` is one of the constants below; `cause` is opaque and never shown.
    """

    def __init__(self, operation: str, message: str, cause: BaseException | None = None) -> None:
        self.operation = operation
        self.cause = cause
        super().__init__(f"{operation}: {message}")


class UnsupportedSchema(DurableAlarmError):
    """The stored row has a schema version that this release cannot read; nothing was written."""


class ProjectionFailed(WakefulError):
    """The projection backfill of a pass failed; canonical work had its turn, nothing was acknowledged."""


class MessagesFailed(WakefulError):
    """The message wave of a pass failed; canonical work had its turn, nothing was acknowledged."""


class PublicationFailed(WakefulError):
    """A publication sink failed during a pass; nothing was acknowledged."""


class RuntimeFailed(WakefulError):
    """Recovery, the head attempt or the residual scan failed; nothing was acknowledged."""


class OwnershipLost(RuntimeFailed):
    """The lease that guards this write is no longer ours; the write was rolled back."""


class ThreadParked(WakefulError):
    """Raised by a hook whose thread cannot go on without a person: the pass ends and pauses it, with this as reason.

    It is no failure: nothing backs off, nothing counts towards quarantine. `resume` goes on where the thread stands.
    """

    def __init__(self, message: str) -> None:
        # A reason that the database refuses (half of a surrogate pair) would leave the thread unparked.
        super().__init__(message.encode(errors="replace").decode().strip() or "no reason was given")


class PassFailed(WakefulError):
    """What a failed pass raises out of its Celery task, without the cause, so that monitoring sees a safe text."""


class MutationRefused(WakefulError):
    """A mutation was used where it cannot keep its promise (see the message); nothing was written."""


class OperationDenied(WakefulError):
    """The actor may not perform this operation; nothing was read or written.

    `operation` and `reason` are empty where the denial comes before both are known.
    """

    def __init__(self, message: str = "", *, operation: str = "", reason: str = "") -> None:
        self.operation = operation
        self.reason = bounded(reason or message, MAX_REASON)
        super().__init__(message or f"{operation} is denied: {self.reason}")


class PassInterrupted(BaseException):
    """A pass must stop at this boundary (deadline, lost lease, drain).

    A `BaseException`, so that no handler of the host's code swallows it: an interrupted pass settles nothing.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


INTERRUPTIONS = (PassInterrupted, SoftTimeLimitExceeded, KeyboardInterrupt, SystemExit)
"""What no handler may swallow. Celery's soft limit is an ordinary `Exception`, so every place that swallows
`Exception` lets these through first."""


GET_ALARM = "get alarm"
SET_ALARM = "set alarm"
DELETE_ALARM = "delete alarm"
ADVANCE_GENERATION = "advance maintenance generation"
END_MUTATION = "end maintenance mutation"
ENSURE_ALARM = "ensure maintenance alarm"
ENSURE_PUBLICATION_ALARM = "ensure publication alarm"
BEGIN_PASS = "begin maintenance pass"
PREPARE_GENERATION = "prepare maintenance generation"
FINISH_PASS = "finish maintenance pass"
FINISH_PUBLICATION_PASS = "finish publication pass"
FAIL_PASS = "fail maintenance pass"
PASS_DEADLINE = "maintenance pass deadline"


def bounded(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` cut to `limit` characters, without the NUL that PostgreSQL refuses."""
    text = text.replace("\x00", "")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def kind_of(error: BaseException) -> str:
    """The class name of a foreign error, safe even if the class lies about its name."""
    try:
        name = type.__getattribute__(type(error), "__name__")
    except BaseException:  # noqa: BLE001 - a hostile metaclass must not break error handling
        return "an unnamed error"
    return _SAFE_NAME.sub("", name)[:80] or "an unnamed error"


def described(error: BaseException) -> str:
    """What a person may see of any error: our own text, or the kind of a foreign one."""
    # By the real type: `isinstance` also asks `__class__`, which a hostile object may let raise.
    kind = type(error)
    if issubclass(kind, WakefulError):
        return cast("WakefulError", error).message
    if issubclass(kind, PassInterrupted):
        return f"interrupted: {cast('PassInterrupted', error).reason}"
    if issubclass(kind, DatabaseError | InterfaceError):
        return database_problem(error)
    return f"{kind_of(error)} was raised; its text is kept out of records, see the worker's log"


def traced(error: BaseException) -> str:
    """The traceback for the worker's log, causes last; the text of a database error, which holds row values, left out.

    Never raises, whatever the error is.
    """
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = traceback.extract_tb(_slot("__traceback__", current))
        parts += [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        parts.append(f"{kind_of(current)}: {_text_for_the_log(current)}")
        cause = _slot("__cause__", current)
        current = _slot("__context__", current) if cause is None else cause
    return bounded("\n".join(parts))


def _slot(name: str, error: BaseException) -> Any:
    """An attribute of `BaseException` itself: one of the same name on a hostile subclass is never asked."""
    return vars(BaseException)[name].__get__(error)


def _text_for_the_log(error: BaseException) -> str:
    if any(base.__module__.partition(".")[0] in _DATABASES for base in type(error).__mro__):
        return database_problem(error)
    try:
        return bounded(str(error), 1_000)
    except BaseException:  # noqa: BLE001 - a hostile `__str__` must not break error handling
        return "a text that cannot be shown"


def database_problem(error: BaseException) -> str:
    """One sentence for a database error, by SQLSTATE class, never by its text."""
    state = _sqlstate(error)
    if state.startswith("55P03"):
        return "another transaction held the thread's row longer than lock_timeout; try again"
    if state.startswith("57014"):
        return "the database cancelled the statement (statement_timeout)"
    if state.startswith("40"):
        return "the database asked to retry (serialisation or deadlock)"
    if state.startswith("22"):
        return "a stored number is out of range"
    if issubclass(type(error), IntegrityError) or state.startswith("23"):
        return "a database constraint refused the write"
    if issubclass(type(error), OperationalError | InterfaceError) or state.startswith(("08", "57", "53")):
        return "the database is unavailable or locked; try again when it is back"
    return f"the database refused the statement (SQLSTATE {state or 'unknown'})"


def is_disconnection(error: BaseException | None) -> bool:
    """Whether the connection to PostgreSQL broke, so that nobody knows whether the last COMMIT happened.

    The driver's own errors have no SQLSTATE; the server's are of class 08 or say that it shuts down. An embedded
    database cannot be disconnected from: there a locked file is the same class of error.
    """
    if error is None or not issubclass(type(error), OperationalError | InterfaceError):
        return False
    from_the_server = _sqlstate(error).startswith(("08", "57P"))
    return from_the_server or (_sqlstate(error) == "" and _is_of(_slot("__cause__", error), "psycopg"))


def _is_of(error: BaseException | None, package: str) -> bool:
    return any(base.__module__.partition(".")[0] == package for base in type(error).__mro__)


def _sqlstate(error: BaseException) -> str:
    for candidate in (error, _slot("__cause__", error)):
        with suppress(Exception):
            state = getattr(candidate, "sqlstate", None)
            if type(state) is str:
                return state
    return ""


@contextmanager
def alarm_operation(operation: str) -> Iterator[None]:
    """Translates database failures of one named operation to `DurableAlarmError`; lets all else pass."""
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        raise DurableAlarmError(operation, database_problem(error), error) from error
    except OverflowError as error:
        raise DurableAlarmError(operation, "a stored number is out of range", error) from error
    except UnicodeEncodeError as error:
        raise DurableAlarmError(operation, "a text holds half of a surrogate pair", error) from error
