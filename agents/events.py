"""Events: something that the outside tells a thread, kept until a run asks for it, given to one run once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from agents import canonical, failpoints, records
from agents.attempt import Attempt
from agents.canonical import Json, NotJson
from agents.conf import get_settings
from agents.errors import (
    AdmissionLimitExceeded,
    AgentInputError,
    EventConflict,
    EventTimedOut,
    StepError,
    UnknownThread,
)
from agents.log import Batch
from agents.models import Event, Thread
from agents.moments import moment, parsed
from agents.records import EventAwaited, EventReceived, NewRecord
from agents.states import Wait
from maintenance import api as maintenance
from maintenance import clock

MAX_NAME = 200
MAX_KEY = 256


def send(
    thread_id: str,
    name: str,
    payload: Any = None,
    *,
    key: str | None = None,
    also: Callable[[datetime], None] | None = None,
) -> bool:
    """Tells a thread something and wakes it; `False` if it had been told before under this key.

    Events wait, in the order of their arrival, for a run that asks for their name. Without a `key` every call is an
    event of its own. `also` is written in the same commit, unless it is a repetition. Raises, with nothing written:
    `UnknownThread`, `AgentInputError`, `AdmissionLimitExceeded`, `EventConflict` (same key, other payload).
    """
    text = _checked(name, payload, key)
    if not Thread.objects.filter(pk=thread_id).exists():
        raise UnknownThread(f"there is no thread {thread_id!r}")
    if key is not None and _is_known(thread_id, name, key, text):
        return False
    failpoints.hit(failpoints.EVENT_BEFORE, thread_id)
    try:
        # Race closed: two senders with one key; the second finds the first one's row under the lock and takes its
        # own bump back.
        with maintenance.mutation(thread_id) as mutation:
            _leave_if_known(thread_id, name, key, text)
            Event.objects.create(
                thread_id=thread_id,
                name=name,
                key=key or f"auto:{uuid.uuid4()}",
                payload=text,
                received_at=mutation.now,
            )
            if also is not None:
                also(mutation.now)
            failpoints.hit(failpoints.EVENT_WRITTEN, thread_id)
    except _Known:
        return False
    failpoints.hit(failpoints.EVENT_AFTER, thread_id)
    return True


class _Known(Exception):
    """The event is there already."""


def _leave_if_known(thread_id: str, name: str, key: str | None, text: Json) -> None:
    if key is not None and _is_known(thread_id, name, key, text):
        raise _Known


def wait(attempt: Attempt, name: str, event: str, timeout: timedelta | None = None) -> Any:
    """The payload of the oldest event of that name that no run has taken; suspends the run until there is one.

    Raises `EventTimedOut`, on every replay again, if `timeout` passes first, and `StepError` for a name that nobody
    can send.
    """
    if not _is_name(event, MAX_NAME):
        raise StepError(f"an event's name is 1 to {MAX_NAME} printable characters")
    received = attempt.journal.payload(records.of_run("event-received", attempt.run, name))
    if received is not None:
        return _content(event, received.get("key"), received.get("content"))
    awaited = attempt.journal.payload(records.of_run("event-awaited", attempt.run, name))
    until = _until(awaited, timeout)
    attempt.boundary()
    found = _take(attempt, name, event, until)
    if found is None:
        attempt.suspend(Wait.EVENT, event, wake_at=until, batch=_request(attempt, name, event, until, awaited))
        # It arrived when we were about to suspend, or the time was up.
        found = _take(attempt, name, event, until)
    if found is None:
        raise EventTimedOut(f"event {event!r} did not arrive in time")
    return _content(event, found.key, None if found.content is None else canonical.parse(found.content))


def _until(awaited: Any, timeout: timedelta | None) -> datetime | None:
    """The recorded moment if the run has been here before."""
    if awaited is not None:
        return parsed(awaited["until"]) if awaited.get("until") else None
    return None if timeout is None else clock.now() + timeout


def _request(attempt: Attempt, name: str, event: str, until: datetime | None, awaited: Any) -> Batch | None:
    if awaited is not None:
        return None
    record_id = records.of_run("event-awaited", attempt.run, name)
    payload = EventAwaited(run=attempt.run, name=name, event=event, until=None if until is None else moment(until))
    return Batch(record_id, [NewRecord(record_id, payload)])


def _take(attempt: Attempt, name: str, event: str, until: datetime | None) -> EventReceived | None:
    """Records the oldest untaken event as this run's, or that the time is up; `None` while there is neither."""
    untaken = Event.objects.filter(thread_id=attempt.thread_id, name=event, taken_by=None).order_by("pk")
    timed_out = until is not None and until <= clock.now()
    if not timed_out and not untaken.exists():
        return None
    failpoints.hit(failpoints.ANSWER_BEFORE, attempt.thread_id)
    # Race closed: a takeover between the look and the taking; whoever holds the thread takes an event.
    with attempt.writing(f"receiving event {event!r}") as append:
        row = untaken.first()
        payload = EventReceived(
            run=attempt.run,
            name=name,
            event=event,
            key=None if row is None else row.key,
            content=None if row is None else Json(row.payload),
        )
        record_id = records.of_run("event-received", attempt.run, name)
        append(Batch(record_id, [NewRecord(record_id, payload)]))
        if row is not None:
            Event.objects.filter(pk=row.pk, taken_by=None).update(taken_by=attempt.claimed.submission_id)
        failpoints.hit(failpoints.ANSWER_WRITTEN, attempt.thread_id)
    failpoints.hit(failpoints.ANSWER_AFTER, attempt.thread_id)
    return payload


def _content(event: str, key: str | None, content: Any) -> Any:
    if key is None:
        raise EventTimedOut(f"event {event!r} did not arrive in time")
    return content


def _is_known(thread_id: str, name: str, key: str, text: Json) -> bool:
    stored = Event.objects.filter(thread_id=thread_id, name=name, key=key).values_list("payload", flat=True).first()
    if stored is not None and stored != text:
        raise EventConflict(f"key {key!r} of event {name!r} stands for another payload")
    return stored is not None


def _checked(name: str, payload: Any, key: str | None) -> Json:
    if not _is_name(name, MAX_NAME):
        raise AgentInputError(f"an event's name is 1 to {MAX_NAME} printable characters")
    if key is not None and not _is_name(key, MAX_KEY):
        raise AgentInputError(f"an event's key is 1 to {MAX_KEY} printable characters")
    try:
        text = canonical.encode(payload)
    except NotJson as error:
        raise AgentInputError(f"the payload of event {name!r} is not JSON: {error}") from None
    maximum = get_settings().max_input_bytes
    if canonical.size(text) > maximum:
        raise AdmissionLimitExceeded(limit="event bytes", actual=canonical.size(text), maximum=maximum)
    return text


def _is_name(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and text.isprintable()
