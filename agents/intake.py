"""Lines of a JSONL file become submissions: a bad line is reported by its number, the good ones go on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agents import canonical
from agents.admission import Receipt, submit
from agents.canonical import NotJson
from agents.errors import WakefulError

MEMBERS = {"thread", "input", "key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What came of one line: its receipt, or the problem with it."""

    number: int
    receipt: Receipt | None = None
    problem: str = ""


class _BadLine(ValueError):
    """The line is not what it should be; the message says how."""


class Intake:
    """Submits line by line and counts."""

    def __init__(self, agent: str, thread_field: str | None = None, *, principal: str = "", once: bool = False) -> None:
        self._agent, self._field, self._principal, self._once = agent, thread_field, principal, once
        self.accepted = self.replayed = self.refused = 0

    def lines(self, file: Iterable[str]) -> Iterator[Line]:
        """One answer for each line that is not empty, as soon as it is known."""
        for number, text in enumerate(file, start=1):
            if text.strip():
                yield self._answer(number, text)

    def _answer(self, number: int, text: str) -> Line:
        try:
            receipt = self._submit(text)
        except (_BadLine, NotJson) as bad:
            self.refused += 1
            return Line(number=number, problem=str(bad))
        except WakefulError as refused:
            self.refused += 1
            return Line(number=number, problem=refused.message)
        if receipt.replayed:
            self.replayed += 1
        else:
            self.accepted += 1
        return Line(number=number, receipt=receipt)

    def _submit(self, text: str) -> Receipt:
        value = _parsed(text)
        thread_id, given, key = self._plain(value) if self._field else _whole(value)
        if key is None and self._once:
            key = f"line:{canonical.digest(canonical.encode([self._agent, thread_id, given]))}"
        return submit(thread_id, self._agent, given, idempotency_key=key, principal=self._principal)

    def _plain(self, value: dict[str, Any]) -> tuple[str, Any, str | None]:
        """The line is an input that names its thread."""
        if self._field not in value:
            message = f"the field {self._field!r} that names the thread is missing"
            raise _BadLine(message)
        return _thread(value[self._field]), value, None


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        message = f"not JSON: {error}"
        raise _BadLine(message) from None
    except RecursionError:
        raise _BadLine("nested too deeply") from None
    if not isinstance(value, dict):
        message = f"a JSON object is needed, not {type(value).__name__}"
        raise _BadLine(message)
    return value


def _whole(value: dict[str, Any]) -> tuple[str, Any, str | None]:
    """The line names thread and input, and perhaps a key."""
    missing = {"thread", "input"} - value.keys()
    unknown = value.keys() - MEMBERS
    if missing or unknown:
        wrong = [f"{name!r} is missing" for name in sorted(missing)] + [
            f"{name!r} is unknown" for name in sorted(unknown)
        ]
        message = f'{", ".join(wrong)}; a line is {{"thread": ..., "input": ..., "key": ...}}'
        raise _BadLine(message)
    return _thread(value["thread"]), value["input"], value.get("key")


def _thread(value: Any) -> str:
    """Numbers name threads as well as texts do."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
