"""The canonical log of a thread: appended atomically, contiguous from 1, chained by digest, never updated.

An append happens inside the caller's transaction, which has proved the thread's lease (a pass) or holds the
thread's gate (an admission): either has locked the thread's maintenance row, so nobody else can append meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import connection

from agents import canonical, hotpath, records
from agents.canonical import Json
from agents.conf import get_settings
from agents.errors import AppendConflict, UnknownThread
from agents.models import LogBatch, LogRecord, Thread
from agents.models.thread import EMPTY_DIGEST
from agents.moments import moment
from agents.records import NewRecord, Payload
from maintenance import clock, owner


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a log ends."""

    sequence: int = 0
    digest: str = EMPTY_DIGEST


EMPTY = Tail()


@dataclass(frozen=True, slots=True)
class Producer:
    """Who appends: the process, and the epoch of the lease it holds (0 at the gate)."""

    name: str
    epoch: int


def this_process(epoch: int = 0) -> Producer:
    """This process as a producer under a lease of that epoch."""
    return Producer(owner.current(), epoch)


@dataclass(frozen=True)
class Batch:
    """Records that are appended together or not at all."""

    batch_id: str
    records: Sequence[NewRecord]

    @cached_property
    def bodies(self) -> list[Json]:
        return [record.body() for record in self.records]

    @cached_property
    def content_digest(self) -> str:
        """What is recorded, whoever records it, when, and wherever the log ends."""
        return canonical.digest(canonical.compose({"batch": self.batch_id, "records": canonical.array(self.bodies)}))


@dataclass(frozen=True, slots=True)
class Sealed:
    """A batch at its place in the log: the texts to be stored and the digest of the log after it."""

    batch: Batch
    producer: Producer
    before: Tail
    after: Tail
    texts: Sequence[Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The committed place of a batch; `replayed` if it was there before."""

    first_sequence: int
    last_sequence: int
    tail: Tail
    replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A committed record, decoded."""

    thread_id: str
    sequence: int
    record_id: str
    family: str
    version: int
    at: str
    """When it was appended: UTC, ISO 8601 with milliseconds."""
    payload: Any
    """Plain JSON; `content` is the typed form."""

    @property
    def content(self) -> Payload:
        return records.decode(self.family, self.version, self.payload)


def append(thread_id: str, batch: Batch, *, tail: Tail, producer: Producer, at: datetime) -> Appended:
    """Appends the batch after `tail`, in the caller's fenced transaction.

    The identical batch again is answered with its original place. Raises `AppendConflict`; the caller's
    transaction must then be rolled back.
    """
    if not connection.in_atomic_block:
        message = "an append needs the transaction that proved the lease"
        raise RuntimeError(message)
    sealed = seal(batch, tail, producer, at)
    stored = _append_fused(thread_id, sealed) if hotpath.serves() else _append_plain(thread_id, sealed)
    if stored:
        return Appended(
            first_sequence=tail.sequence + 1, last_sequence=sealed.after.sequence, tail=sealed.after, replayed=False
        )
    return _replayed(thread_id, batch)


def append_at_tail(thread_id: str, batch: Batch, *, epoch: int) -> Appended:
    """Appends under a pass's lease wherever the log ends now, for who does not keep track of its tail."""
    return append(thread_id, batch, tail=tail_of(thread_id), producer=this_process(epoch), at=clock.now())


def seal(batch: Batch, tail: Tail, producer: Producer, at: datetime) -> Sealed:
    """Computes the stored texts and the chain digest; writes nothing. Raises `AppendConflict` for a repeated id."""
    _check(batch)
    at_text = moment(at)
    texts = [records.stamped(body, at_text) for body in batch.bodies]
    digest = chain(tail.digest, batch.batch_id, producer, texts)
    return Sealed(batch, producer, tail, Tail(tail.sequence + len(texts), digest), texts)


def chain(previous: str, batch_id: str, producer: Producer, texts: Sequence[str]) -> str:
    """The digest of a log after a batch: over the one before, the producer and the stored texts."""
    return canonical.digest(
        canonical.compose(
            {
                "batch": batch_id,
                "epoch": producer.epoch,
                "previous": previous,
                "producer": producer.name,
                "records": canonical.array([Json(text) for text in texts]),
            }
        )
    )


def tail_of(thread_id: str) -> Tail:
    """Where the log ends now. Raises `UnknownThread`."""
    found = Thread.objects.filter(pk=thread_id).values_list("tail_sequence", "tail_digest").first()
    if found is None:
        raise UnknownThread(f"there is no thread {thread_id!r}")
    return Tail(*found)


def read(thread_id: str, after: int = 0, limit: int | None = None, *, families: Sequence[str] = ()) -> list[Record]:
    """At most `limit` records (a page) with a sequence beyond `after`, in order: what is committed now."""
    settings = get_settings()
    rows = LogRecord.objects.filter(thread_id=thread_id, sequence__gt=after).order_by("sequence")
    if families:
        rows = rows.filter(family__in=families)
    page = rows.values_list("sequence", "text")[: min(limit or settings.log_page, settings.max_log_page)]
    return [decode(thread_id, sequence, text) for sequence, text in page]


def find(thread_id: str, record_id: str) -> Record | None:
    """The record of that id, if it is in the log."""
    found = LogRecord.objects.filter(thread_id=thread_id, record_id=record_id).values_list("sequence", "text").first()
    return None if found is None else decode(thread_id, *found)


def export(thread_id: str, after: int = 0) -> Iterator[Record]:
    """The whole log up to its tail at this moment, read in pages."""
    last = tail_of(thread_id).sequence
    while after < last:
        page = read(thread_id, after, min(get_settings().max_log_page, last - after))
        if not page:
            return
        yield from page
        after = page[-1].sequence


def decode(thread_id: str, sequence: int, text: str) -> Record:
    """The record of a stored text."""
    envelope = canonical.parse(text)
    return Record(
        thread_id=thread_id,
        sequence=sequence,
        record_id=envelope["id"],
        family=envelope["family"],
        version=envelope["v"],
        at=envelope["at"],
        payload=envelope["payload"],
    )


def _check(batch: Batch) -> None:
    ids = [record.record_id for record in batch.records]
    if len(set(ids)) < len(ids):
        raise AppendConflict(AppendConflict.RECORD_IDENTITY, "a record id occurs twice in the batch")
    if not 1 <= len(ids) <= get_settings().max_batch_records:
        message = f"a batch holds 1 to {get_settings().max_batch_records} records, not {len(ids)}"
        raise ValueError(message)


def _append_fused(thread_id: str, sealed: Sealed) -> bool:
    written = hotpath.append(thread_id, sealed)
    if written is not None and written < len(sealed.texts):
        raise AppendConflict(AppendConflict.RECORD_IDENTITY, "a record id is already in the log")
    return written is not None


def _append_plain(thread_id: str, sealed: Sealed) -> bool:
    """As the rule reads: the batch is new, the tail is the presented one, no record id is taken."""
    batch, before, after = sealed.batch, sealed.before, sealed.after
    if LogBatch.objects.filter(thread_id=thread_id, batch_id=batch.batch_id).exists():
        return False
    at_tail = Thread.objects.filter(pk=thread_id, tail_sequence=before.sequence, tail_digest=before.digest)
    if not at_tail.update(tail_sequence=after.sequence, tail_digest=after.digest):
        return False
    ids = [record.record_id for record in batch.records]
    if LogRecord.objects.filter(thread_id=thread_id, record_id__in=ids).exists():
        raise AppendConflict(AppendConflict.RECORD_IDENTITY, "a record id is already in the log")
    row = LogBatch.objects.create(
        thread_id=thread_id,
        batch_id=batch.batch_id,
        first_sequence=before.sequence + 1,
        last_sequence=after.sequence,
        producer=sealed.producer.name,
        epoch=sealed.producer.epoch,
        content_digest=batch.content_digest,
        previous_digest=before.digest,
        digest=after.digest,
    )
    LogRecord.objects.bulk_create(
        LogRecord(
            thread_id=thread_id,
            sequence=before.sequence + offset,
            batch=row,
            record_id=record.record_id,
            family=record.payload.family,
            text=text,
        )
        for offset, (record, text) in enumerate(zip(batch.records, sealed.texts, strict=True), start=1)
    )
    return True


def _replayed(thread_id: str, batch: Batch) -> Appended:
    """The batch was not written: either it is there with the same content, or something is in its way."""
    stored = LogBatch.objects.filter(thread_id=thread_id, batch_id=batch.batch_id).first()
    if stored is None:
        raise AppendConflict(AppendConflict.TAIL, f"the log of the thread ends at {tail_of(thread_id).sequence}")
    if stored.content_digest != batch.content_digest:
        raise AppendConflict(AppendConflict.BATCH_DIGEST, "the batch id stands for other content")
    return Appended(
        first_sequence=stored.first_sequence,
        last_sequence=stored.last_sequence,
        tail=tail_of(thread_id),
        replayed=True,
    )
