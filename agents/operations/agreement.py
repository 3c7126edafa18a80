"""Comparing rows with the log: order, one settlement each, and that every row says what the log justifies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from agents.operations.history import Asked, History
from agents.operations.stored import ApprovalRow, CallRow, Row, Stored
from agents.states import Outcome, State, Wait

Say = Callable[[str], None]
Problems = dict[str, list[str]]
"""What is wrong, by the name of the check."""


def compare(stored: Stored, history: History, problems: Problems) -> None:
    """Runs every check that needs both sides."""
    for name, check in CHECKS.items():
        check(stored, history, problems[name].append)


def _fifo_inputs(stored: Stored, history: History, say: Say) -> None:
    _in_order([known for known, _ in history.inputs], stored, say)


def _fifo_settlements(stored: Stored, history: History, say: Say) -> None:
    """Work that was aborted before it ran may settle out of turn; everything else may not."""
    began = {known for known, _ in history.inputs}
    ran = [one.submission for one in history.settlements if one.submission in began or one.outcome != Outcome.ABORTED]
    _in_order(ran, stored, say)


def _in_order(submissions: list[str], stored: Stored, say: Say) -> None:
    places = {row.submission_id: row.queue_sequence for row in stored.rows}
    before = 0
    for known in submissions:
        # One without a row was admitted while we looked, or is another check's business.
        place = places.get(known, before)
        if place < before:
            say(f"{known} is number {place} of the queue and comes after number {before}")
        before = max(before, place)


def _terminal_uniqueness(stored: Stored, history: History, say: Say) -> None:
    times = Counter(one.submission for one in history.settlements)
    for known, count in times.items():
        if count > 1:
            say(f"{known} has {count} settlement records")
    for row in stored.rows:
        if row.is_settled and not times[row.submission_id]:
            say(f"{row.submission_id} is settled without a record")


def _ledger_agreement(stored: Stored, history: History, say: Say) -> None:
    outcomes = {one.submission: one.outcome for one in history.settlements}
    inputs = dict(history.inputs)
    known = {row.submission_id for row in stored.rows}
    for one in history.settlements:
        if one.submission not in known and one.sequence <= stored.still:
            say(f"{one.submission} is settled in the log and has no row")
    for row in stored.rows:
        outcome = outcomes.get(row.submission_id)
        if row.is_settled and row.outcome != outcome:
            say(f"{row.submission_id} is {row.outcome}, the log says {outcome or 'nothing'}")
        found = inputs.get(row.submission_id)
        if row.first_sequence is not None and found != row.first_sequence:
            say(f"{row.submission_id} claims its input at {row.first_sequence}, the log has it at {found}")


def _waits(stored: Stored, history: History, say: Say) -> None:
    for row in stored.rows:
        suspended = row.state == State.SUSPENDED
        if suspended != bool(row.waits_for):
            say(f"{row.submission_id} is {row.state} and waits for {row.waits_for or 'nothing'}")
        elif suspended and row.waits_for != Wait.CHILD and not _was_awaited(row, history):
            say(f"{row.submission_id} waits for {row.waits_for} {row.waits_on!r}, of which the log knows nothing")


def _was_awaited(row: Row, history: History) -> bool:
    return (row.submission_id, row.waits_for, row.waits_on) in history.awaited


RUNNABLE = {State.INPUT_APPLIED, State.UNKNOWN, State.TERMINALIZING}
"""States in which an attempt may be without an end: it runs, or it vanished and nobody has noted that yet."""


def _attempts(stored: Stored, _: History, say: Say) -> None:
    open_rows = [row for row in stored.rows if row.open_attempts]
    if sum(row.open_attempts for row in open_rows) > 1:
        say("more than one attempt of the thread has no end")
    for row in open_rows:
        if row.state not in RUNNABLE:
            say(f"{row.submission_id} is {row.state}, and an attempt of it has no end")
    for row in stored.rows:
        if not row.attempts == row.stored_attempts == row.last_attempt:
            counted = f"{row.stored_attempts} are stored, the last is number {row.last_attempt}"
            say(f"{row.submission_id} counts {row.attempts} attempts, {counted}")


def _joins(stored: Stored, history: History, say: Say) -> None:
    rows = {row.submission_id: row for row in stored.rows}
    settled = {one.submission: one for one in history.settlements}
    for row in stored.rows:
        recorded, sequence = history.taken.get(row.submission_id, ("", 0))
        if row.host != recorded and sequence <= stored.still:
            say(f"{row.submission_id} has joined {row.host or 'nobody'}, the log says {recorded or 'nobody'}")
        if not row.host:
            continue
        host, end = rows.get(row.host), settled.get(row.submission_id)
        if host is None or host.queue_sequence >= row.queue_sequence:
            say(f"{row.submission_id} has joined {row.host}, which is not before it in its thread")
        elif end is not None and end.host != row.host:
            say(f"{row.submission_id} joined {row.host} and settled with {end.host or 'nobody'}")
        elif end is not None and host.submission_id in settled and settled[row.host].outcome != end.outcome:
            say(f"{row.submission_id} is {end.outcome}, its host {settled[row.host].outcome}")


def _aborts(stored: Stored, history: History, say: Say) -> None:
    for known, (author, sequence) in history.aborts.items():
        if sequence <= stored.still and stored.aborts.get(known) != author:
            say(f"{known} was aborted by {author} in the log, by {stored.aborts.get(known, 'nobody')} in its row")
    for one in history.settlements:
        if one.outcome == Outcome.ABORTED and one.host is None and one.submission not in history.aborts:
            say(f"{one.submission} is aborted, and nobody asked for it")


def _calls(stored: Stored, history: History, say: Say) -> None:
    known = set()
    for row in stored.calls:
        key = (row.submission_id, row.turn, row.call)
        known.add(key)
        call = history.calls.get(key)
        if call is None:
            say(f"call {row.call!r} of {row.submission_id} has a row and no record")
        elif call.last <= stored.still:
            expected = CallRow(*key, call.tool, call.kind, call.tries, call.status, call.digest)
            if row != expected:
                say(f"call {row.call!r} of {row.submission_id}: {_difference(row, expected)}")
    for key, call in history.calls.items():
        if key not in known and call.last <= stored.still:
            say(f"call {key[2]!r} of {key[0]} is in the log and has no row")


def _difference(row: CallRow, expected: CallRow) -> str:
    names = ("tool", "kind", "tries", "status", "digest")
    found = ((name, getattr(row, name), getattr(expected, name)) for name in names)
    return ", ".join(f"{name} {ours}, the log says {theirs}" for name, ours, theirs in found if ours != theirs)


def _approvals(stored: Stored, history: History, say: Say) -> None:
    known = set()
    for row in stored.approvals:
        key = (row.submission_id, row.name)
        known.add(key)
        asked = history.approvals.get(key)
        if asked is None:
            say(f"approval {row.name!r} of {row.submission_id} has a row and no record")
        elif not row.digest == row.computed == asked.digest:
            say(f"approval {row.name!r} of {row.submission_id} is not about what was asked")
        elif asked.last <= stored.still and not _same_decision(row, asked):
            ours = f"{row.decision or 'nothing'} by {row.decided_by or 'nobody'}"
            theirs = f"{asked.decision} by {asked.resolver}"
            say(f"approval {row.name!r} of {row.submission_id}: {ours}, the log says {theirs}")
    for key, asked in history.approvals.items():
        if key not in known and asked.last <= stored.still:
            say(f"approval {key[1]!r} of {key[0]} is in the log and has no row")


def _same_decision(row: ApprovalRow, asked: Asked) -> bool:
    """A decision is in the row first; the run records it when it goes on."""
    return not asked.decision or (row.decision, row.decided_by) == (asked.decision, asked.resolver)


def _events(stored: Stored, history: History, say: Say) -> None:
    takers = {(row.name, row.key): row.taken_by for row in stored.events}
    times = Counter(key for key, _, _ in history.received)
    for (name, key), count in times.items():
        if count > 1:
            say(f"event {name!r} with key {key!r} was taken {count} times")
    for event, taker, sequence in history.received:
        if sequence <= stored.still and takers.get(event) != taker:
            say(f"event {event[0]!r} was taken by {taker}, its row says {takers.get(event, 'nobody')}")
    for name, key in takers.keys() - times.keys():
        say(f"event {name!r} with key {key!r} is marked as taken, and no record says so")


def _completed_calls(_: Stored, history: History, say: Say) -> None:
    for text in history.left_open:
        say(f"{text} is open, although its run completed")


CHECKS: dict[str, Callable[[Stored, History, Say], None]] = {
    "fifo-input-order": _fifo_inputs,
    "fifo-settlement-order": _fifo_settlements,
    "terminal-uniqueness": _terminal_uniqueness,
    "ledger-canonical-agreement": _ledger_agreement,
    "wait-agreement": _waits,
    "attempt-agreement": _attempts,
    "join-agreement": _joins,
    "abort-agreement": _aborts,
    "tool-call-agreement": _calls,
    "completed-calls": _completed_calls,
    "approval-agreement": _approvals,
    "event-agreement": _events,
}
"""The checks that need rows, by name."""
