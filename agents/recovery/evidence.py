"""What the log and the attempts prove about the unsettled submissions of one thread. Read-only, in pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from agents import log, records
from agents.conf import get_settings
from agents.models import Attempt, LogRecord, Submission
from agents.records import StepSettled, SubmissionSettled
from agents.recovery.classify import Facts
from agents.states import Ending, Outcome, State

_ROW = ("id", "state", "attempts", "first_sequence")


def gather(thread_id: str) -> list[Facts]:
    """The facts of every unsettled submission, in queue order.

    While all of them are queued and none was ever begun, the rows say everything and the log is not read.
    """
    budget = get_settings().retry_budget
    rows = Submission.objects.filter(thread_id=thread_id).exclude(state=State.SETTLED).order_by("queue_sequence")
    facts = [
        Facts(submission_id=pk, state=State(state), attempts=attempts, first_sequence=first, budget=budget)
        for pk, state, attempts, first in rows.values_list(*_ROW)
    ]
    begun = [known for known in facts if known.first_sequence is not None]
    if not begun:
        return facts
    seen = _read_log(thread_id, begun)
    return [_with_evidence(thread_id, known, seen.get(known.submission_id)) for known in facts]


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
        elif family == StepSettled.family and (found := runs.get(records.run_of_step(record_id))):
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


def _with_evidence(thread_id: str, facts: Facts, seen: _Seen | None) -> Facts:
    if seen is None:
        return facts
    return replace(
        facts,
        recorded_outcome=_outcome(thread_id, facts.submission_id) if seen.settled else None,
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
