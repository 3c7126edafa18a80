"""Arguments that several verbs share."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from agents.management.answers import EPILOG, Out

Options = dict[str, Any]
Verb = Callable[[Out, Options], None]


def add_verb(verbs: Any, name: str, run: Verb, text: str) -> ArgumentParser:
    """A verb with its help and `--json`."""
    parser: ArgumentParser = verbs.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=EPILOG
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object a line")
    parser.set_defaults(run=run)
    return parser


def add_author(parser: ArgumentParser) -> None:
    """Who and why, for what changes something."""
    parser.add_argument("--reason", type=text_of, required=True, help="why; kept for good")
    parser.add_argument("--actor", type=text_of, help="who, as it is kept; your user name on this machine if not given")


def text_of(value: str) -> str:
    if not value.strip():
        raise ArgumentTypeError("must not be empty")
    return value.strip()


def json_of(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise ArgumentTypeError(f"is not JSON ({error}); quote it for your shell, as in '{{\"id\": 1}}'") from None


def count_of(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ArgumentTypeError(f"{value!r} is not a whole number above 0")
    return int(value)


def seconds_of(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 10**9:
        raise ArgumentTypeError(f"{value!r} is not a number of seconds")
    return seconds
