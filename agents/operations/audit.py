"""The log by itself, line by line: that it can be read, has no gap, and that its chain of digests is unbroken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agents import canonical, log, records
from agents.canonical import Json
from agents.conf import get_settings
from agents.log import EMPTY, Producer, Tail
from agents.models import LogRecord
from agents.operations.agreement import Problems
from agents.operations.history import History
from agents.records import NewRecord


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
        self.history = History()
        self.epoch = 0
        """The newest epoch that has written."""
        self._ids: set[str] = set()
        self._tail = EMPTY
        self._open: list[Line] = []
        """The lines of the batch that is being read."""

    def take(self, line: Line) -> None:
        self.count += 1
        if line.sequence != self.count:
            self._say("sequence-contiguity", f"record {self.count} is missing, {line.sequence} comes instead")
            self.count = line.sequence
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
        self._identify(record.record_id)
        if again != line.text or (record.record_id, record.family) != (line.record_id, line.family):
            self._say("schema-round-trip", f"record {line.sequence} is not what it was written as")
        self.history.take(content, line.sequence)

    def _identify(self, record_id: str) -> None:
        """By the text, which is the record: the column beside it is unique, so it could never tell."""
        if record_id in self._ids:
            self._say("record-identity", f"{record_id} occurs twice")
        self._ids.add(record_id)

    def _close_batch(self) -> None:
        batch, texts = self._open[0], [line.text for line in self._open]
        bodies = canonical.array([_body(text) for text in texts])
        content = canonical.digest(canonical.compose({"batch": batch.batch_id, "records": bodies}))
        digest = log.chain(self._tail.digest, batch.batch_id, Producer(batch.producer, batch.epoch), texts)
        claimed = (batch.previous_digest, batch.digest, batch.content_digest, batch.last_sequence)
        if claimed != (self._tail.digest, digest, content, self._open[-1].sequence):
            self._say("digest-chain", f"batch {batch.batch_id} does not follow from the log before it")
        # Admissions write without a lease, as epoch 0.
        if 0 < batch.epoch < self.epoch:
            self._say("epoch-order", f"batch {batch.batch_id} is of epoch {batch.epoch}, after one of {self.epoch}")
        self.epoch = max(self.epoch, batch.epoch)
        self._tail = Tail(self._open[-1].sequence, batch.digest)
        self._open = []

    def _say(self, check: str, text: str) -> None:
        self._problems[check].append(text)


def _body(text: str) -> Json:
    """The part of a stored text that a replay has in common with it: without the time."""
    return Json("{" + text[text.find(",") + 1 :])
