"""One process that lives a life: client, people and workers in one, until everything is settled or it dies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from agents import api
from agents.models import Approval, ApprovalDecision, CallStatus, Submission, ToolCall
from agents.states import State, Wait
from maintenance import dispatch, reaper, sweep
from maintenance.dispatch import Hint
from maintenance.testing import MovedClock, run_due_passes
from tests.process.crash import cast, effects
from tests.process.crash.lives import Life

LONGER = timedelta(seconds=cast.SLEEP + 1)

RESULTS = {"charge": "charged", "telegraph": "sent"}
"""What a person finds that a call came to."""

MOST_ROUNDS = 6
"""Each brings a life further; one that needs more does not converge."""


@dataclass
class World:
    """Everybody who has to do with one thread."""

    life: Life
    thread_id: str
    path: str
    """Where effects are noted."""
    clock: MovedClock
    lost_a_hint: bool = False

    def live(self) -> None:
        """Goes on until everything is settled. Raises `AssertionError` if it does not come to that."""
        dispatch.BREAKER_SECONDS = 0.0
        dispatch.send = self._publish
        for _ in range(MOST_ROUNDS):
            reaper.reap()
            receipts = self.life.submits(self.thread_id, self._submit)
            self.life.client(self.thread_id, receipts)
            sweep.sweep()
            run_due_passes()
            if all(api.settlement(receipt) for receipt in receipts):
                return
            self._answer()
            self.clock.ahead += LONGER
        message = f"not settled: {list(Submission.objects.values_list('state', 'waits_for', 'attempts'))}"
        raise AssertionError(message)

    def _publish(self, hint: Hint) -> None:
        if self.life.loses_a_hint and not self.lost_a_hint:
            self.lost_a_hint = True
            raise ConnectionError(hint.thread_id)

    def _submit(self) -> list[api.Receipt]:
        """A client that got no receipt submits again under the same key."""
        return [
            api.submit(self.thread_id, self.life.agent, {"path": self.path, **given}, idempotency_key=str(place))
            for place, given in enumerate(self.life.inputs)
        ]

    def _answer(self) -> None:
        for approval in Approval.objects.filter(decision=""):
            api.resolve_approval(approval.pk, ApprovalDecision.APPROVED, actor="alice", reason="why not")
        for waiting in Submission.objects.filter(state=State.SUSPENDED, waits_for=Wait.EVENT):
            api.send_event(self.thread_id, waiting.waits_on, {"is": "good"}, key="news-1")
        for unknown in ToolCall.objects.filter(status=CallStatus.UNKNOWN):
            self._resolve(unknown)

    def _resolve(self, call: ToolCall) -> None:
        """A person looks at the world outside, which is the file of effects."""
        happened = effects.counts(self.path)[call.tool] > 0
        resolution = self.life.resolution or ("completed-with-result" if happened else "never-started")
        result = RESULTS[call.tool] if resolution == "completed-with-result" else None
        api.resolve_unknown(call.submission_id, call.call, resolution, result=result, actor="bob", reason="he looked")
