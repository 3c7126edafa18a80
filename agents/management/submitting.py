"""`agents submit`: each line of a file becomes a submission; a bad line is told by its number and stops no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import CommandError

from agents import registry
from agents.intake import Intake, Line
from agents.management.answers import Exit, Out
from agents.management.arguments import Options, add_verb
from agents.operations import show


def add(verbs: Any) -> None:
    """Declares the verb."""
    parser = add_verb(verbs, "submit", submit, "submit one piece of work for each line of a file")
    parser.add_argument("agent")
    parser.add_argument("--jsonl", required=True, metavar="FILE", help="one JSON object a line; - is standard input")
    parser.add_argument(
        "--thread-field",
        metavar="FIELD",
        help="each line is an input, and this field of it names the thread; without it a line is "
        '{"thread": ..., "input": ..., "key": ...} with an optional key',
    )
    parser.add_argument("--principal", default="", help="on whose behalf; keys are unique for each")
    parser.add_argument(
        "--once",
        action="store_true",
        help="give lines without a key one made from thread and input: the file may be sent again",
    )


def submit(out: Out, options: Options) -> None:
    """Submits the file and counts."""
    registry.get(options["agent"])
    intake = Intake(options["agent"], options["thread_field"], principal=options["principal"], once=options["once"])
    with _opened(options["jsonl"]) as file:
        for line in intake.lines(file):
            _tell(out, line)
    summary = {"accepted": intake.accepted, "replayed": intake.replayed, "refused": intake.refused}
    out.tell(summary)
    out.say(", ".join(f"{count} {word}" for word, count in summary.items()))
    if intake.refused:
        out.fail(Exit.FAILED)


def _tell(out: Out, line: Line) -> None:
    if line.receipt is None:
        out.warn(f"line {line.number}: {line.problem}")
    else:
        out.tell({"line": line.number, **show.receipt(line.receipt)})


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdin
        return
    try:
        file = Path(path).open(encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - closed just below
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", returncode=Exit.USAGE) from error
    with file:
        yield file
