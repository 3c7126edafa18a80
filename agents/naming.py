"""Whatever names a submission: its receipt, its settlement, its id."""

from __future__ import annotations

from uuid import UUID

from agents.admission import Receipt
from agents.errors import UnknownSubmission
from agents.settlement import Settlement

SubmissionLike = Receipt | Settlement | UUID | str


def id_of(submission: SubmissionLike) -> UUID:
    """The id, without a look whether there is such a submission. Raises `UnknownSubmission` for what is no id."""
    if isinstance(submission, Receipt | Settlement):
        return submission.submission_id
    try:
        return submission if isinstance(submission, UUID) else UUID(str(submission))
    except ValueError:
        raise UnknownSubmission("that is not the id of a submission") from None
