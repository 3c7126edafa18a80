"""What a child process of a process test is told by its test, in one environment variable that nothing else reads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.process.board import Board

VARIABLE = "WAKEFUL_PROCESS_TEST"


@dataclass(kw_only=True)
class Entry:
    """How a child process of a test differs from production."""

    folder: str
    """Of the board."""
    timer: bool = True
    """Whether the worker has its own sweep timer."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """Options of `run_pass`, set after the start-up checks: users do configure what the checks refuse."""
    transport: str = ""
    """`recording`, `without-eta`, `lossy:SEED`: see `tests.process.transports`. Empty: the broker alone."""
    machine: str = ""
    """Claim to be on another machine, so that no death can be proved here."""
    breaker_seconds: float = 1.0
    """How long a process does not publish after a failure, scaled with the other times."""

    @property
    def board(self) -> Board:
        return Board(Path(self.folder))

    def environment(self) -> dict[str, str]:
        """The variable by which a child process finds this entry again."""
        return {VARIABLE: json.dumps(asdict(self))}


def read() -> Entry:
    """The entry of this process."""
    return Entry(**json.loads(os.environ[VARIABLE]))


def board() -> Board:
    """The board of this process's test."""
    return read().board
