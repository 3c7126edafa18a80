"""Canonical JSON text (RFC 8785): the only form in which inputs, results and records are stored and digested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import rfc8785

MAX_DEPTH = 64
"""Containers, each within the one before; deeper values could be written but not read back under every stack."""

_LARGEST_EXACT = 2**53 - 1


class NotJson(ValueError):
    """The value has no canonical JSON form; the message says why, without showing the value."""


class Json(str):
    """Text that is canonical JSON already: it is spliced into larger texts as it stands."""

    __slots__ = ()


NULL = Json("null")


def encode(value: object) -> Json:
    """The canonical text of a JSON value; a `Json` is returned as it is. Raises `NotJson`."""
    if isinstance(value, Json):
        return value
    _check_depth(value, MAX_DEPTH)
    try:
        return Json(rfc8785.dumps(value).decode())  # type: ignore[arg-type]
    except rfc8785.IntegerDomainError:
        raise NotJson("an integer is beyond 2^53 - 1, which JSON cannot hold exactly") from None
    except rfc8785.FloatDomainError:
        raise NotJson("a number is not finite") from None
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise NotJson(_reason(error)) from None


def compose(members: Mapping[str, object]) -> Json:
    """The canonical text of an object whose keys are plain ASCII; `Json` members are spliced, not parsed again."""
    parts = (f'"{key}":{encode(members[key])}' for key in sorted(members))
    return Json("{" + ",".join(parts) + "}")


def array(texts: list[Json]) -> Json:
    """The canonical text of an array of canonical texts."""
    return Json("[" + ",".join(texts) + "]")


def parse(text: str) -> Any:
    """The value of a canonical text, such that encoding it again gives the same text."""
    return json.loads(text, parse_int=_number)


def digest(text: str) -> str:
    """SHA-256 of the text in UTF-8, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def size(text: str) -> int:
    """Length of the text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _number(digits: str) -> int | float:
    """RFC 8785 writes 1e16 without a point; read as an integer it could not be encoded again."""
    number = int(digits)
    return number if -_LARGEST_EXACT <= number <= _LARGEST_EXACT else float(digits)


def _check_depth(value: object, left: int) -> None:
    if left < 1:
        message = f"it is nested deeper than {MAX_DEPTH}"
        raise NotJson(message)
    if isinstance(value, dict):
        for member in value.values():
            if isinstance(member, dict | list | tuple):
                _check_depth(member, left - 1)
    elif isinstance(value, list | tuple):
        for member in value:
            if isinstance(member, dict | list | tuple):
                _check_depth(member, left - 1)


def _reason(error: Exception) -> str:
    text = str(error)
    if text.startswith("unsupported type"):
        kind = text.partition("'")[2].rpartition("'")[0] or "unknown"
        return f"a value of type {kind} has no JSON form"
    if isinstance(error, UnicodeEncodeError) or "UTF-8" in text:
        return "a text holds half of a surrogate pair"
    return text
