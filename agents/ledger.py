"""What is owed: the claim of a head, the end of a submission, and what is left, read from the rows themselves.

The verbs here run inside a transaction that has proved the pass's lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import F

from agents import calls, hotpath, waits
from agents.answers import Question
from agents.hotpath import Claimed
from agents.models import Attempt, Submission, Thread
from agents.states import CLAIMABLE, Ending, Outcome, State, Wait, sources
from agents.waits import Left
from maintenance import clock, owner
from maintenance.ports import RecoveryReport, Residue


class ThreadLedger:
    """The port through which a pass asks what its thread owes."""

    inert = False

    def thread_exists(self, thread_id: str) -> bool:
        """Whether a thread without a maintenance row is known."""
        return Thread.objects.filter(pk=thread_id).exists()

    def scan_nonterminal(self, thread_id: str, reports: Sequence[RecoveryReport]) -> Residue:
        """What is left. One statement while the head can go on; with a waiting head, one more for the rest."""
        head = hotpath.head(thread_id)
        if head is None:
            return Residue()
        state, nonterminal = head
        if waits.is_claimable(state):
            return Residue(nonterminal=nonterminal, autonomous=True, claimable_head=True)
        return waits.residue(_left(thread_id), reports)


_LEFT = ("id", "state", "abort_intent", "waits_for", "waits_on", "wake_at")


def _left(thread_id: str) -> list[Left]:
    """Every unsettled submission in queue order, with what it waits for."""
    rows = Submission.objects.filter(thread_id=thread_id).exclude(state=State.SETTLED).order_by("queue_sequence")
    values = list(rows.values_list(*_LEFT))
    unknown = calls.standing([pk for pk, state, *_ in values if state == State.UNKNOWN])
    return [
        Left(
            submission_id=str(pk),
            state=State(state),
            aborted=abort is not None,
            unanswered_calls=unknown[pk].unanswered if pk in unknown else 0,
            question=Question(submission_id=pk, thread_id=thread_id, wait=Wait(wait), name=name, wake_at=wake_at)
            if wait
            else None,
        )
        for pk, state, abort, wait, name, wake_at in values
    ]


def claim_head(thread_id: str, epoch: int) -> Claimed | None:
    """Takes the head of the queue and begins an attempt; its input must follow in the same transaction.

    `None`: there is no head, or its state blocks the queue (nothing behind it is looked at).
    """
    return hotpath.claim(thread_id, epoch) if hotpath.serves() else _claim_plain(thread_id, epoch)


def _claim_plain(thread_id: str, epoch: int) -> Claimed | None:
    """As the rule reads: the lowest unsettled queue sequence, if its state can be claimed."""
    open_rows = Submission.objects.filter(thread_id=thread_id).exclude(state=State.SETTLED)
    head = open_rows.select_related("thread").order_by("queue_sequence").first()
    if head is None:
        return None
    tail = head.thread.tail_sequence
    first_sequence = head.first_sequence or tail + 1
    won = Submission.objects.filter(pk=head.pk, state__in=CLAIMABLE).update(
        state=State.INPUT_APPLIED, attempts=F("attempts") + 1, first_sequence=first_sequence
    )
    if not won:
        return None
    attempt = Attempt.objects.create(
        submission=head,
        number=head.attempts + 1,
        epoch=epoch,
        owner=owner.current(),
        began_after=max(tail, first_sequence),
        started_at=clock.now(),
    )
    return Claimed(
        submission_id=head.pk,
        queue_sequence=head.queue_sequence,
        principal=head.principal,
        agent=head.agent,
        input=head.input,
        number=attempt.number,
        first_sequence=first_sequence,
        input_applied=head.state == State.INPUT_APPLIED,
        tail_sequence=tail,
        tail_digest=head.thread.tail_digest,
        started_at=attempt.started_at,
    )


def settle(submission_id: UUID, outcome: Outcome, number: int, ending: Ending, *, transition: str = "settle") -> bool:
    """Makes the row final and ends its attempt `number`, once the settlement record is in the log.

    `False`: the row is not in a state from which the transition leads, so it is settled already or was never begun.
    """
    if transition == "settle" and hotpath.serves():
        return hotpath.settle(submission_id, outcome, number, ending)
    now = clock.now()
    row = Submission.objects.filter(pk=submission_id, state__in=sources(transition))
    if not row.update(state=State.SETTLED, outcome=outcome, settled_at=now, waits_for="", waits_on="", wake_at=None):
        return False
    end_attempt(submission_id, number, ending)
    return True


def joined_to(thread_id: str, host: UUID) -> list[UUID]:
    """The submissions that settle with this host, in queue order: unsettled rows of its own thread."""
    rows = Submission.objects.filter(thread_id=thread_id, host_id=host, state=State.JOINED).order_by("queue_sequence")
    return list(rows.values_list("pk", flat=True))


def end_attempt(submission_id: UUID, number: int, ending: Ending) -> None:
    """Notes how an attempt ended that did not settle its submission."""
    attempt = Attempt.objects.filter(submission_id=submission_id, number=number, ending="")
    attempt.update(ending=ending, ended_at=clock.now())


def note_lost_attempts(submission_id: UUID, before: int) -> None:
    """Attempts before this one that have no end belong to processes that died: the lease says so."""
    vanished = Attempt.objects.filter(submission_id=submission_id, number__lt=before, ending="")
    vanished.update(ending=Ending.LOST, ended_at=clock.now())
