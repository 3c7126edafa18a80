"""A thread's whole log as JSON lines: a header, each batch before its records, and a line that says it is whole.

The text of a record is copied as it is stored, and a batch names its producer and digests, so whoever holds the file
can compute the chain again.
"""

from __future__ import annotations

from collections.abc import Iterator

from agents import canonical, log
from agents.canonical import Json
from agents.log import Tail
from agents.moments import moment
from agents.naming import check_thread_id
from agents.operations import audit
from agents.operations.audit import Line
from agents.operations.authorize import Actor, Operation, authorize
from maintenance import clock

FORMAT = "wakeful-log"
VERSION = 1
"""Of the lines themselves; each record carries its own version."""


def export(thread_id: str, *, actor: Actor = None) -> Iterator[str]:
    """The lines of the log up to its tail at this moment, read in pages as they are asked for.

    Raises `OperationDenied`, `UnknownThread` at once, not with the first line.
    """
    authorize(actor, Operation.EXPORT, thread_id=thread_id)
    check_thread_id(thread_id)
    return _lines(thread_id, log.tail_of(thread_id))


def _lines(thread_id: str, tail: Tail) -> Iterator[str]:
    header = {"format": FORMAT, "v": VERSION, "thread": thread_id, "records": tail.sequence, "digest": tail.digest}
    yield canonical.compose({"kind": "header", "at": moment(clock.now()), **header})
    batch = None
    for line in audit.lines(thread_id, tail.sequence):
        if line.batch_key != batch:
            batch = line.batch_key
            yield _batch(line)
        yield canonical.compose({"kind": "record", "sequence": line.sequence, "record": Json(line.text)})
    yield canonical.compose({"kind": "end", "records": tail.sequence, "digest": tail.digest})


def _batch(line: Line) -> Json:
    return canonical.compose(
        {
            "kind": "batch",
            "batch": line.batch_id,
            "first": line.sequence,
            "last": line.last_sequence,
            "producer": line.producer,
            "epoch": line.epoch,
            "content_digest": line.content_digest,
            "previous_digest": line.previous_digest,
            "digest": line.digest,
        }
    )
