"""Joining: a running submission takes queued followers along at a safe seam; they settle with it.

Input and state of a follower change in one commit, so nobody is ever found half joined; host and joined settle in
one commit, so no outcome can differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any
from uuid import UUID

from agents import canonical, failpoints, log, records
from agents.attempt import Attempt
from agents.canonical import Json
from agents.errors import StateConflict
from agents.log import Batch
from agents.models import Submission
from agents.records import FollowupsTaken, NewRecord, UserInput
from agents.states import State, sources

MAX_AT_ONCE = 32
"""Followers that one seam takes at most."""


def followups(attempt: Attempt, name: str, limit: int = MAX_AT_ONCE) -> list[Any]:
    """The inputs of the queued followers that this run takes along here, in queue order; on a replay, the same ones.

    Taken are the next submissions of the same agent, up to the first that cannot be: another agent's, or one that
    waits for its parent. One whose abort was accepted is passed by; recovery settles it.
    """
    record_id = records.of_run("followups", attempt.run, name)
    recorded = attempt.journal.payload(record_id)
    if recorded is None:
        attempt.boundary()
        taken = _take(attempt, name, record_id, min(limit, MAX_AT_ONCE))
    else:
        taken = _inputs([UUID(one) for one in recorded["submissions"]])
    return [canonical.parse(text) for text in taken]


def _take(attempt: Attempt, name: str, record_id: str, limit: int) -> list[str]:
    failpoints.hit(failpoints.JOIN_BEFORE, attempt.thread_id)
    # Race closed: an abort or another submission that commits while we look; both go through the gate, whose lock
    # the fence holds from here to the commit.
    with attempt.writing(f"taking followers ({name!r})") as append:
        rows = _next_followers(attempt, limit)
        payload = FollowupsTaken(run=attempt.run, name=name, submissions=[str(row.pk) for row in rows])
        inputs = [_input(attempt, row) for row in rows]
        before = log.tail_of(attempt.thread_id).sequence
        append(Batch(record_id, [*inputs, NewRecord(record_id, payload)]))
        for place, row in enumerate(rows, start=1):
            _join(attempt, row, before + place)
        failpoints.hit(failpoints.JOIN_WRITTEN, attempt.thread_id)
    failpoints.hit(failpoints.JOIN_AFTER, attempt.thread_id)
    attempt.took_followers()
    return [row.input for row in rows]


def _next_followers(attempt: Attempt, limit: int) -> list[Submission]:
    """The contiguous run of queued rows behind the host that can join it."""
    behind = Submission.objects.filter(
        thread_id=attempt.thread_id, queue_sequence__gt=attempt.claimed.queue_sequence
    ).exclude(state=State.SETTLED)
    candidates = behind.filter(abort_intent=None).exclude(host_id=attempt.claimed.submission_id)
    ordered = candidates.order_by("queue_sequence")[:limit]
    return list(takewhile(lambda row: row.state == State.READY and row.agent == attempt.claimed.agent, ordered))


def _input(attempt: Attempt, row: Submission) -> NewRecord:
    payload = UserInput(
        submission=str(row.pk), kind="steering", run=attempt.run, agent=row.agent, input=Json(row.input)
    )
    return NewRecord(records.input_id(row.pk), payload)


def _join(attempt: Attempt, row: Submission, sequence: int) -> None:
    joined = Submission.objects.filter(pk=row.pk, state__in=sources("join")).update(
        state=State.JOINED, host_id=attempt.claimed.submission_id, first_sequence=sequence
    )
    if not joined:
        raise StateConflict("a follower changed its state while it was taken; the attempt starts over")


def _inputs(submissions: Sequence[UUID]) -> list[str]:
    found = dict(Submission.objects.filter(pk__in=submissions).values_list("pk", "input"))
    return [found[one] for one in submissions]
