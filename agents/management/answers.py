"""How `manage.py agents` answers: lines for people, one JSON object a line for machines, an exit code for scripts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, InterfaceError

from agents import registry
from agents.errors import (
    AbortRefused,
    AdmissionLimitExceeded,
    AgentInputError,
    ApprovalConflict,
    CallNotUnknown,
    CallRefused,
    EventConflict,
    RetryRefused,
    UnknownAgent,
    UnknownApproval,
    UnknownResolutionConflict,
    UnknownSubmission,
    UnknownThread,
    WakefulError,
)
from maintenance.errors import OperationDenied, described


class Exit(IntEnum):
    """Exit codes; scripts and cron jobs rely on them."""

    OK = 0
    """It was done."""
    FAILED = 1
    """It failed, or a check found something wrong."""
    UNKNOWN = 2
    """There is no such thread, submission, approval or agent."""
    REFUSED = 3
    """It cannot be done as things stand; nothing was written."""
    DENIED = 4
    """The authorizer does not allow it."""
    USAGE = 64
    """The arguments make no sense."""
    INTERRUPTED = 130


EPILOG = (
    "Exit codes: 0 done, 1 failed or something is wrong, 2 no such thread, submission, approval or agent, "
    "3 refused as things stand, 4 denied, 64 wrong arguments."
)

KINDS: tuple[tuple[type[WakefulError] | tuple[type[WakefulError], ...], Exit], ...] = (
    ((UnknownThread, UnknownSubmission, UnknownApproval, UnknownAgent), Exit.UNKNOWN),
    (OperationDenied, Exit.DENIED),
    ((AgentInputError, CallRefused), Exit.USAGE),
    (
        (
            AbortRefused,
            AdmissionLimitExceeded,
            ApprovalConflict,
            CallNotUnknown,
            EventConflict,
            RetryRefused,
            UnknownResolutionConflict,
        ),
        Exit.REFUSED,
    ),
    (WakefulError, Exit.FAILED),
)

HINTS: dict[type[WakefulError], str] = {
    UnknownThread: "Ids are case-sensitive; `agents obligations` lists the threads that owe something.",
    UnknownSubmission: "`agents show THREAD` lists the submissions of a thread with their ids.",
    UnknownApproval: "`agents explain THREAD` names the open approvals with their ids.",
    CallNotUnknown: "`agents explain THREAD` names the unknown calls.",
    OperationDenied: "AGENTS['AUTHORIZER'] decides that.",
}


class Out:
    """Where a verb's answer goes."""

    def __init__(self, out: OutputWrapper, err: OutputWrapper, *, as_json: bool) -> None:
        self._out, self._err, self.as_json = out, err, as_json
        self.code = Exit.OK

    def say(self, line: str) -> None:
        """One line for people."""
        if not self.as_json:
            self._out.write(line)

    def tell(self, data: Any) -> None:
        """One object for machines; dataclasses are taken as they are."""
        if self.as_json:
            plain = dataclasses.asdict(data) if dataclasses.is_dataclass(data) and not isinstance(data, type) else data
            self._out.write(json.dumps(plain, cls=DjangoJSONEncoder, ensure_ascii=False))

    def raw(self, line: str) -> None:
        """A line that is the same for both."""
        self._out.write(line)

    def warn(self, line: str) -> None:
        """Something that did not work, while the rest goes on."""
        self._err.write(line)

    def fail(self, code: Exit) -> None:
        """Sets the exit code; the first one stays."""
        self.code = self.code or code

    def refuse(self, error: WakefulError | DatabaseError | InterfaceError, about: str = "") -> None:
        """Says what went wrong and what to do about it."""
        code, text = _code_of(error), _text_of(error)
        prefix = f"{about}: " if about else ""
        self.fail(code)
        if self.as_json:
            named = {"subject": about} if about else {}
            self.tell({"exit_code": int(code), "kind": type(error).__name__, "error": text, **named})
        else:
            self.warn(f"{prefix}{text}")

    @contextmanager
    def each(self, about: str) -> Iterator[None]:
        """One of several: its failure is told and stops no other."""
        try:
            yield
        except (WakefulError, DatabaseError, InterfaceError) as error:
            self.refuse(error, about)


def _code_of(error: BaseException) -> Exit:
    return next((code for kinds, code in KINDS if isinstance(error, kinds)), Exit.FAILED)


def _text_of(error: WakefulError | DatabaseError | InterfaceError) -> str:
    text = described(error).rstrip(".")
    if isinstance(error, DatabaseError | InterfaceError):
        return f"{text}. Is the database up and migrated? `manage.py maintenance doctor` looks closer."
    if isinstance(error, UnknownAgent):
        return f"{text}. Declared here: {', '.join(registry.names()) or 'none'}."
    hint = HINTS.get(type(error))
    return f"{text}. {hint}" if hint else f"{text}."
