"""The records of one run, as a resumed attempt reads them: ids at once, texts a page at a time."""

from __future__ import annotations

from typing import Any

from agents import canonical, records
from agents.canonical import Json
from agents.conf import get_settings
from agents.models import LogRecord


class Journal:
    """What a run has recorded, by record id. A replay asks in the order of the records, so one page is kept.

    Memory: the ids of the run's records and the texts of one page.
    """

    def __init__(self, thread_id: str, run: str, first_sequence: int, *, empty: bool) -> None:
        self._thread_id, self._run, self._first = thread_id, run, first_sequence
        self._places: dict[str, int] | None = {} if empty else None
        self._page: dict[int, str] = {}

    def output(self, name: str) -> Json | None:
        """The recorded output of the step of that name."""
        payload = self.payload(records.step_id(self._run, name))
        return None if payload is None else canonical.encode(payload["output"])

    def payload(self, record_id: str) -> Any:
        """The payload of a record of this run as plain JSON; `None` if it was not there when the attempt began."""
        sequence = self._known().get(record_id)
        return None if sequence is None else canonical.parse(self._text_at(sequence))["payload"]

    def knows(self, kind: str) -> bool:
        """Whether the run has a record of this kind from before this attempt."""
        return self._places != {} and any(one.startswith(f"{kind}:") for one in self._known())

    def count(self, kind: str) -> int:
        """How many records of this kind the run had before this attempt."""
        return sum(one.startswith(f"{kind}:") for one in self._known())

    def _known(self) -> dict[str, int]:
        """Where each record of the run is; read from the log once."""
        if self._places is None:
            self._places = {}
            size = get_settings().max_log_page
            page = self._ids(self._first, size)
            while page:
                self._places.update({one: at for at, one in page if records.run_of(one) == self._run})
                page = self._ids(page[-1][0], size) if len(page) == size else []
        return self._places

    def _ids(self, after: int, size: int) -> list[tuple[int, str]]:
        rows = LogRecord.objects.filter(thread_id=self._thread_id, sequence__gt=after).order_by("sequence")
        return list(rows.values_list("sequence", "record_id")[:size])

    def _text_at(self, sequence: int) -> str:
        if sequence not in self._page:
            rows = LogRecord.objects.filter(thread_id=self._thread_id, sequence__gte=sequence).order_by("sequence")
            self._page = dict(rows.values_list("sequence", "text")[: get_settings().log_page])
        return self._page[sequence]
