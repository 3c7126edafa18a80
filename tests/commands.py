"""Runs a management command in this process and returns what a shell would see."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from typing import Any

from django.core.management import call_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run: its exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.out)


def maintenance(*arguments: object, as_json: bool = False) -> Ran:
    """Runs `manage.py maintenance` with these arguments. Wrong arguments raise `CommandError`."""
    return _run("maintenance", arguments, as_json=as_json)


def _run(command: str, arguments: tuple[object, ...], *, as_json: bool) -> Ran:
    out, err = StringIO(), StringIO()
    words = [str(argument) for argument in arguments] + ["--json"] * as_json
    code = 0
    try:
        call_command(command, *words, stdout=out, stderr=err, no_color=True)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())


def agents(*arguments: object, as_json: bool = False) -> Ran:
    """Runs `manage.py agents` with these arguments. Wrong arguments raise `CommandError`."""
    return _run("agents", arguments, as_json=as_json)
