"""What came of a submission, or what it waits for."""

from __future__ import annotations

from agents import api
from agents.models import Submission
from agents.states import State, Wait


def settled(submission: api.SubmissionLike) -> api.Settlement:
    """The settlement, which must be there; `AssertionError` says where the submission stands instead."""
    found = api.settlement(submission)
    if found is None:
        message = f"the submission is not settled: {_standing(_row(submission))}"
        raise AssertionError(message)
    return found


def waiting(submission: api.SubmissionLike) -> tuple[Wait, str]:
    """What a suspended submission waits for, as kind and name; `AssertionError` if it does not wait."""
    row = _row(submission)
    if row.state != State.SUSPENDED:
        message = f"the submission does not wait: {_standing(row)}"
        raise AssertionError(message)
    return Wait(row.waits_for), row.waits_on


def _row(submission: api.SubmissionLike) -> Submission:
    named = submission if not isinstance(submission, api.Receipt | api.Settlement) else submission.submission_id
    return Submission.objects.get(pk=named)


def _standing(row: Submission) -> str:
    if row.state == State.SETTLED:
        return f"it is {row.outcome}"
    wait = f", waits for {row.get_waits_for_display()} {row.waits_on!r}" if row.waits_for else ""
    until = f" until {row.wake_at:%Y-%m-%d %H:%M:%S}" if row.wake_at else ""
    return f"its state is {row.state}, after {row.attempts} attempts{wait}{until}"
