"""Trying again later: a run that cannot go on now waits for a moment before which nothing may claim it.

Attempts without recorded progress are counted from the log and the attempts' rows, so that no restart, replay or
forced pass refills the budget.
"""

from __future__ import annotations

from datetime import timedelta

from agents import records, settlement
from agents.attempt import Attempt, Result
from agents.conf import get_settings
from agents.errors import RetryLater
from agents.log import Batch
from agents.models import Attempt as AttemptRow
from agents.models import LogRecord
from agents.moments import moment
from agents.records import NewRecord, RetryScheduled
from agents.states import Ending, Outcome, Wait
from maintenance import clock
from maintenance.rearm import at_least, exponential, half_to_full

EXHAUSTED_TAG = "RetriesExhausted"


def later(attempt: Attempt, asked: RetryLater) -> Result:
    """Suspends the run until the retry's moment; a failed result if its budget is used up.

    The moment is the later of the backoff and what the other side asked for, with up to a fifth of that added.
    """
    settings = get_settings()
    fruitless = _fruitless(attempt)
    if fruitless >= settings.retry_budget:
        message = f"{fruitless} attempts without recorded progress, {settings.retry_budget} are allowed; last: "
        return Result(outcome=Outcome.FAILED, failure=settlement.failed(EXHAUSTED_TAG, message + asked.message))
    backoff = half_to_full(exponential(settings.retry_backoff_base, settings.retry_backoff_cap, max(0, fruitless - 1)))
    not_before = clock.now() + max(backoff, at_least(asked.after or timedelta()))
    payload = RetryScheduled(
        run=attempt.run,
        attempt=attempt.claimed.number,
        not_before=moment(not_before),
        error_tag=asked.tag,
        message=asked.message,
    )
    record_id = records.of_run("retry", attempt.run, str(attempt.claimed.number))
    attempt.suspend(
        Wait.RETRY,
        asked.tag[:200],
        wake_at=not_before,
        batch=Batch(record_id, [NewRecord(record_id, payload)]),
        unless=lambda: False,
        ending=Ending.RETRIED,
    )
    raise AssertionError  # a suspension that nothing can answer always leaves by its exception


def _fruitless(attempt: Attempt) -> int:
    """Attempts since the last recorded progress that were not asked to stop, this one included."""
    progress = LogRecord.objects.filter(
        thread_id=attempt.thread_id, sequence__gte=attempt.claimed.first_sequence, family__in=records.PROGRESS
    )
    last = progress.order_by("-sequence").values_list("sequence", flat=True).first() or 0
    since = AttemptRow.objects.filter(submission_id=attempt.claimed.submission_id, began_after__gte=last)
    return since.exclude(ending__in=[Ending.YIELDED, Ending.SUSPENDED]).count()
