"""What `verify` looks at: the log line by line, then the rows against what the log said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agents import canonical, log, records
from agents.canonical import Json
from agents.conf import get_settings
from agents.log import EMPTY, Producer, Tail
from agents.models import LogRecord
from agents.records import NewRecord, SubmissionSettled, UserInput
from agents.states import Outcome, State

Problems = dict[str, list[str]]
"""What is wrong, by the name of the check."""


@dataclass(frozen=True, slots=True)
class Row:
    """A submission's row, as far as the log can contradict it."""

    submission_id: str
    queue_sequence: int
    state: str
    outcome: str
    first_sequence: int | None

    @property
    def is_settled(self) -> bool:
        return self.state == State.SETTLED


@dataclass(frozen=True, slots=True)
class Line:
    """One stored record with what its batch claims."""

    sequence: int
    record_id: str
    family: str
    text: str
    batch_key: int
    batch_id: str
    producer: str
    epoch: int
    content_digest: str
    previous_digest: str
    digest: str
    last_sequence: int


_COLUMNS = (
    "sequence",
    "record_id",
    "family",
    "text",
    "batch_id",
    "batch__batch_id",
    "batch__producer",
    "batch__epoch",
    "batch__content_digest",
    "batch__previous_digest",
    "batch__digest",
    "batch__last_sequence",
)


def lines(thread_id: str, last: int) -> Iterator[Line]:
    """The stored log up to a sequence, in order, read in pages."""
    after, size = 0, get_settings().max_log_page
    rows = LogRecord.objects.filter(thread_id=thread_id, sequence__lte=last).order_by("sequence")
    while True:
        page = [Line(*row) for row in rows.filter(sequence__gt=after).values_list(*_COLUMNS)[:size]]
        yield from page
        if len(page) < size:
            return
        after = page[-1].sequence


class LogAudit:
    """Goes through a log once and keeps what the rows are compared with."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self.count = 0
        self.inputs: list[tuple[str, int]] = []
        """Submissions whose input was recorded, with its sequence, in the order of the log."""
        self.settlements: list[tuple[str, Outcome]] = []
        self._ids: set[str] = set()
        self._tail = EMPTY
        self._open: list[Line] = []
        """The lines of the batch that is being read."""

    def take(self, line: Line) -> None:
        self.count += 1
        if line.sequence != self.count:
            self._say("sequence-contiguity", f"record {self.count} is missing, {line.sequence} comes instead")
            self.count = line.sequence
        if line.record_id in self._ids:
            self._say("record-identity", f"{line.record_id} occurs twice")
        self._ids.add(line.record_id)
        self._decode(line)
        if self._open and self._open[-1].batch_key != line.batch_key:
            self._close_batch()
        self._open.append(line)

    def close(self, tail: Tail) -> None:
        """The log has been read to the end that its thread claims."""
        if self._open:
            self._close_batch()
        if self.count != tail.sequence:
            self._say("sequence-contiguity", f"the log ends at {self.count}, the thread says {tail.sequence}")
        if self._tail.digest != tail.digest:
            self._say("digest-chain", "the digest of the whole log is not the thread's")

    def _decode(self, line: Line) -> None:
        try:
            record = log.decode("", line.sequence, line.text)
            content = record.content
            again = records.stamped(NewRecord(record.record_id, content).body(), record.at)
        except (ValueError, KeyError, TypeError) as error:
            self._say("schema-round-trip", f"record {line.sequence} cannot be read ({type(error).__name__})")
            return
        if again != line.text or (record.record_id, record.family) != (line.record_id, line.family):
            self._say("schema-round-trip", f"record {line.sequence} is not what it was written as")
        if isinstance(content, UserInput):
            self.inputs.append((content.submission, line.sequence))
        elif isinstance(content, SubmissionSettled):
            self.settlements.append((content.submission, content.outcome))

    def _close_batch(self) -> None:
        batch, texts = self._open[0], [line.text for line in self._open]
        bodies = canonical.array([_body(text) for text in texts])
        content = canonical.digest(canonical.compose({"batch": batch.batch_id, "records": bodies}))
        digest = log.chain(self._tail.digest, batch.batch_id, Producer(batch.producer, batch.epoch), texts)
        claimed = (batch.previous_digest, batch.digest, batch.content_digest, batch.last_sequence)
        if claimed != (self._tail.digest, digest, content, self._open[-1].sequence):
            self._say("digest-chain", f"batch {batch.batch_id} does not follow from the log before it")
        self._tail = Tail(self._open[-1].sequence, batch.digest)
        self._open = []

    def _say(self, check: str, text: str) -> None:
        self._problems[check].append(text)


def _body(text: str) -> Json:
    """The part of a stored text that a replay has in common with it: without the time."""
    return Json("{" + text[text.find(",") + 1 :])


def audit_rows(rows: list[Row], audit: LogAudit, problems: Problems) -> None:
    """Compares the rows with the log: order of execution, one settlement each, agreement."""
    places = {row.submission_id: row.queue_sequence for row in rows}
    inputs = dict(audit.inputs)
    _in_order("fifo-input-order", [known for known, _ in audit.inputs], places, problems)
    # Work that was aborted before it ran may settle out of turn; everything else may not.
    settled = [known for known, outcome in audit.settlements if known in inputs or outcome != Outcome.ABORTED]
    _in_order("fifo-settlement-order", settled, places, problems)
    outcomes = dict(audit.settlements)
    for known, _ in audit.settlements:
        if known not in places:
            problems["ledger-canonical-agreement"].append(f"{known} is settled in the log and has no row")
    if len(outcomes) < len(audit.settlements):
        problems["terminal-uniqueness"].append("a submission has more than one settlement record")
    for row in rows:
        _agree(row, inputs.get(row.submission_id), outcomes.get(row.submission_id), problems)


def _agree(row: Row, input_sequence: int | None, outcome: Outcome | None, problems: Problems) -> None:
    if row.is_settled and outcome is None:
        problems["terminal-uniqueness"].append(f"{row.submission_id} is settled without a record")
    elif row.is_settled and row.outcome != outcome:
        problems["ledger-canonical-agreement"].append(f"{row.submission_id} is {row.outcome}, the log says {outcome}")
    if row.first_sequence is not None and input_sequence != row.first_sequence:
        problems["ledger-canonical-agreement"].append(
            f"{row.submission_id} claims its input at {row.first_sequence}, the log has it at {input_sequence}"
        )


def _in_order(check: str, submissions: list[str], places: dict[str, int], problems: Problems) -> None:
    before = 0
    for known in submissions:
        place = places.get(known, 0)
        if place < before:
            problems[check].append(f"{known} is number {place} of the queue and comes after number {before}")
        before = max(before, place)
