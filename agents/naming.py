"""Whatever names a submission (its receipt, its settlement, its id), and what names a thread."""

from __future__ import annotations

from uuid import UUID

from agents.admission import Receipt
from agents.errors import UnknownSubmission, UnknownThread
from agents.settlement import Settlement
from maintenance.identity import is_thread_id

SubmissionLike = Receipt | Settlement | UUID | str


def id_of(submission: SubmissionLike) -> UUID:
    """The id, without a look whether there is such a submission. Raises `UnknownSubmission` for what is no id."""
    if isinstance(submission, Receipt | Settlement):
        return submission.submission_id
    try:
        return submission if isinstance(submission, UUID) else UUID(str(submission))
    except ValueError:
        raise UnknownSubmission("that is not the id of a submission") from None


def check_thread_id(thread_id: str) -> None:
    """Raises `UnknownThread` for what no thread can be called: a database would refuse even to look for it."""
    if not is_thread_id(thread_id):
        raise UnknownThread(f"there is no thread {thread_id!r}")
