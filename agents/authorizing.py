"""Asking the host project whether a tool may run: before the call is prepared, and before an open one is run again.

That it was allowed is recorded by the call's own prepared record and by nothing else. So a call that a crash left
open is asked about again when it would run again: a permission that has gone meanwhile is gone. A denial ends the
run, whatever its handler makes of it, and the settlement is its record: what was denied is never asked again.
"""

from __future__ import annotations

from agents import calls, metrics, policies, settlement
from agents.attempt import Attempt, Result, logger
from agents.states import Outcome
from agents.tries import Try

DENIED_TAG = "AgentToolAuthorizationDenied"

LEFT_OPEN = "the run was denied a tool while this call was open"


class Denied(BaseException):
    """The host does not allow a call: the run ends here and is settled as failed.

    A `BaseException`, so that a handler's own `except Exception` does not swallow it: a replay that was then allowed
    what its first life was denied would do both.
    """

    def __init__(self, reason: str) -> None:
        self.failure = settlement.failed(DENIED_TAG, reason)
        super().__init__(self.failure.message)


def require(attempt: Attempt, made: Try) -> None:
    """Returns if the tool may run. Leaves by `Denied`, or by `Halted` if the authorizer has no answer; nothing was
    written then."""
    call = made.call
    with attempt.stopping():
        reason = policies.refusal(attempt, call.name, call.tool.name, call.arguments, made.kind)
    if reason is None:
        return
    metrics.tool_calls.labels("denied").inc()
    logger.info("tool.denied", thread=attempt.thread_id, tool=call.tool.name, call=call.name)
    attempt.stop(Denied(reason))
    attempt.raise_if_stopped()


def settle_denied(attempt: Attempt, denied: Denied) -> None:
    """Ends the run of this attempt as failed: its open calls and its settlement, in one commit."""
    result = Result(outcome=Outcome.FAILED, failure=denied.failure)
    attempt.settle_stopped(result, lambda: calls.audit(attempt.claimed.submission_id, LEFT_OPEN))
