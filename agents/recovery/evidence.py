"""What the log and the attempts prove about the unsettled submissions of one thread. Read-only, in pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from agents import answers, calls, hotpath, log, records
from agents.answers import Question
from agents.calls import Calls
from agents.conf import get_settings
from agents.models import Attempt, LogRecord, Submission
from agents.records import SubmissionSettled
from agents.recovery.classify import Facts
from agents.states import Ending, Outcome, State, Wait

_ROW = (
    "id",
    "state",
    "queue_sequence",
    "attempts",
    "first_sequence",
    "waits_for",
    "waits_on",
    "wake_at",
    "host__outcome",
    "abort_intent",
)


def gather(thread_id: str) -> list[Facts]:
    """The facts of every unsettled submission, in queue order.

    While all of them are queued and none was ever begun, one look at the rows says everything.
    """
    queued = hotpath.queued(thread_id)
    if queued is not None:
        budget = get_settings().retry_budget
        return [Facts(submission_id=pk, state=State.READY, queue_sequence=place, budget=budget) for pk, place in queued]
    rows = Submission.objects.filter(thread_id=thread_id).exclude(state=State.SETTLED).order_by("queue_sequence")
    facts = [_of_row(thread_id, *values) for values in rows.values_list(*_ROW)]
    begun = [known for known in facts if known.first_sequence is not None]
    if not begun:
        return facts
    seen = _read_log(thread_id, begun)
    standing = calls.standing([known.submission_id for known in begun])
    return [_with_evidence(thread_id, known, seen.get(known.submission_id), standing) for known in facts]


def _of_row(  # noqa: PLR0913, PLR0917 - the columns of a row
    thread_id: str,
    pk: UUID,
    state: str,
    queue_sequence: int,
    attempts: int,
    first_sequence: int | None,
    waits_for: str,
    waits_on: str,
    wake_at: datetime | None,
    host_outcome: str | None,
    abort_intent: UUID | None,
) -> Facts:
    wait = Wait(waits_for) if waits_for else None
    question = None
    if wait is not None:
        question = Question(submission_id=pk, thread_id=thread_id, wait=wait, name=waits_on, wake_at=wake_at)
    return Facts(
        submission_id=pk,
        state=State(state),
        queue_sequence=queue_sequence,
        attempts=attempts,
        first_sequence=first_sequence,
        host_outcome=Outcome(host_outcome) if host_outcome else None,
        aborted=abort_intent is not None,
        waits_for=wait,
        waits_on=waits_on,
        wake_at=wake_at,
        answered=question is not None and answers.is_there(question),
        budget=get_settings().retry_budget,
    )


@dataclass(slots=True)
class _Seen:
    """What the log holds about one submission: sequences, not texts."""

    settled: bool = False
    last_progress: int = 0


def _read_log(thread_id: str, begun: Sequence[Facts]) -> dict[UUID, _Seen]:
    """Goes through the log from the oldest begun submission on, by ids alone; memory is bounded by a page."""
    seen = {known.submission_id: _Seen() for known in begun}
    settlements = {records.settlement_id(pk): found for pk, found in seen.items()}
    runs = {records.run_id(pk): found for pk, found in seen.items()}
    oldest = min(known.first_sequence or 1 for known in begun)
    for sequence, record_id, family in _ids(thread_id, oldest):
        if family == SubmissionSettled.family and record_id in settlements:
            settlements[record_id].settled = True
        elif family in records.PROGRESS and (found := runs.get(records.run_of(record_id))):
            found.last_progress = sequence
    return seen


def _ids(thread_id: str, first: int) -> Iterator[tuple[int, str, str]]:
    after, size = first - 1, get_settings().max_log_page
    rows = LogRecord.objects.filter(thread_id=thread_id).order_by("sequence")
    while True:
        page = list(rows.filter(sequence__gt=after).values_list("sequence", "record_id", "family")[:size])
        yield from page
        if len(page) < size:
            return
        after = page[-1][0]


def _with_evidence(thread_id: str, facts: Facts, seen: _Seen | None, standing: dict[UUID, Calls]) -> Facts:
    if seen is None:
        return facts
    mine = standing.get(facts.submission_id, Calls())
    return replace(
        facts,
        recorded_outcome=_outcome(thread_id, facts.submission_id) if seen.settled else None,
        open_calls=mine.open,
        answered_calls=mine.unanswered == 0,
        last_progress=seen.last_progress,
        fruitless=_fruitless(facts, seen.last_progress),
    )


def _outcome(thread_id: str, submission_id: UUID) -> Outcome | None:
    record = log.find(thread_id, records.settlement_id(submission_id))
    return None if record is None else Outcome(record.payload["outcome"])


def _fruitless(facts: Facts, last_progress: int) -> int:
    """Attempts that began after the last progress: none of them made any. Those that were asked to stop are free.

    Counted from log and history, so that neither a restart nor a replay refills the budget.
    """
    if facts.attempts < facts.budget:
        return 0
    since = Attempt.objects.filter(submission_id=facts.submission_id, began_after__gte=last_progress)
    return since.exclude(ending__in=[Ending.YIELDED, Ending.SUSPENDED]).count()
