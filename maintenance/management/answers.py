"""What a command answers: lines for a person, data for a machine, an exit code for a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes; scripts and cron jobs rely on them."""

    OK = 0
    """It ran."""
    FAILED = 1
    """It ran and failed, or a check found something wrong."""
    UNKNOWN_THREAD = 2
    """There is no such thread."""
    BUSY = 3
    """A pass holds the thread; it will see what this command stands for."""
    PAUSED = 4
    """Paused or in quarantine."""
    NOT_DUE = 5
    """Nothing is owed now."""
    USAGE = 64
    """The arguments make no sense (2, which is usual for that, is taken)."""
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole outcome of one command."""

    code: Exit = Exit.OK
    lines: list[str] = field(default_factory=list)
    """One fact a line."""
    data: dict[str, Any] = field(default_factory=dict)
    """The same for `--json`."""

    def as_json(self) -> dict[str, Any]:
        """The data, with the exit code and, if there is nothing else to say, the lines as its error."""
        found: dict[str, Any] = {"exit_code": int(self.code), **self.data}
        if self.code is not Exit.OK and not self.data:
            found["error"] = " ".join(self.lines)
        return found


def unknown_thread(thread_id: str) -> Answer:
    """The answer for a thread that maintenance has never seen."""
    text = f"There is no thread {thread_id!r}. Thread ids are case-sensitive; `maintenance status` shows what exists."
    return Answer(code=Exit.UNKNOWN_THREAD, lines=[text], data={"thread": thread_id, "error": text})
