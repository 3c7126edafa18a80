"""The recorded steps of one run, as a resumed attempt reads them: names at once, outputs a page at a time."""

from __future__ import annotations

from agents import canonical, records
from agents.canonical import Json
from agents.conf import get_settings
from agents.models import LogRecord
from agents.records import StepSettled


class Journal:
    """Steps of one run by name. A replay asks for them in the order of their records, so one page is kept.

    Memory: the names of all steps and the outputs of one page.
    """

    def __init__(self, thread_id: str, run: str, first_sequence: int, *, empty: bool) -> None:
        self._thread_id, self._run, self._first = thread_id, run, first_sequence
        self._places: dict[str, int] | None = {} if empty else None
        self._page: dict[int, str] = {}
        self._fresh: set[str] = set()

    def output(self, name: str) -> Json | None:
        """The recorded output of the step of that name."""
        sequence = self._known().get(name)
        return None if sequence is None else self._output_at(sequence)

    def _known(self) -> dict[str, int]:
        """Where each step of the run is recorded; read from the log once."""
        if self._places is None:
            self._places = {}
            after = self._first
            while page := self._names(after):
                for sequence, record_id in page:
                    name = records.step_name(self._run, record_id)
                    if name is not None:
                        self._places[name] = sequence
                after = page[-1][0]
        return self._places

    def _names(self, after: int) -> list[tuple[int, str]]:
        rows = LogRecord.objects.filter(thread_id=self._thread_id, sequence__gt=after).order_by("sequence")
        return list(rows.values_list("sequence", "record_id")[: get_settings().max_log_page])

    def _output_at(self, sequence: int) -> Json:
        if sequence not in self._page:
            rows = LogRecord.objects.filter(
                thread_id=self._thread_id, sequence__gte=sequence, family=StepSettled.family
            ).order_by("sequence")
            self._page = dict(rows.values_list("sequence", "text")[: get_settings().log_page])
        return canonical.encode(canonical.parse(self._page[sequence])["payload"]["output"])
