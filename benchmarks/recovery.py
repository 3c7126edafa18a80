"""What a long run costs when its attempt is lost: 10,000 recorded steps, a dead process, and the pass that goes on.

One process, no worker. Timed are: `recovery`, from the begin of gathering evidence about the thread to its decision;
`resumed pass`, from the delivery to its end, which is recovery, the replay of every step, one more step, and the
settlement; `later pass`, the pass of the next submission of that thread, which has nothing to replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from django.db import transaction

from agents import api, canonical, failpoints, log, records
from agents.conf import get_settings
from agents.log import Batch
from agents.records import NewRecord, StepSettled
from agents.recovery.classify import Decision, classify
from agents.recovery.evidence import gather
from agents.testing import agent_for_test, crash_at, durable_testing, run_due_passes
from agents.testing import settled as settlement_of
from benchmarks.field import contest
from benchmarks.options import Options
from benchmarks.report import Outcome, Target
from benchmarks.stand import Stand
from maintenance import clock

NAME = "recovery"
TITLE = "recovery of a long run"


def run(stand: Stand, options: Options) -> Outcome:
    """10,000 steps at full size, a thread for each round."""
    contest.empty_tables()
    stand.empty_broker()
    amount = options.sized(10_000)
    with durable_testing(), agent_for_test(_replay, name="bench-long") as agent:
        rounds = [_once(f"long-{number}", agent, amount) for number in range(options.rounds)]
    recovery, resumed, later = zip(*rounds, strict=True)
    outcome = Outcome(NAME, TITLE)
    outcome.add(f"recovery, {amount:,} records of the run", recovery, "s", Target(1))
    outcome.add(f"resumed pass, {amount:,} steps replayed", resumed, "s")
    outcome.add("later pass of the same thread", [seconds * 1_000 for seconds in later], "ms")
    return outcome


def _replay(ctx: api.Context, given: int) -> int:
    return sum(ctx.step(f"step {number}", _one) for number in range(given + 1))


def _one() -> int:
    return 1


def _once(thread_id: str, agent: str, amount: int) -> tuple[float, float, float]:
    """Seconds of recovery, of the resumed pass, and of a later one."""
    receipt = api.submit(thread_id, agent, amount)
    with crash_at(failpoints.CLAIM_AFTER):
        run_due_passes()
    _record(thread_id, receipt.submission_id, amount)
    recovery = _timed(lambda: _decide(thread_id))
    resumed = _timed(run_due_passes)
    if settlement_of(receipt).result != amount + 1:
        message = "the resumed run did not come to its result"
        raise AssertionError(message)
    api.submit(thread_id, agent, 0)
    return recovery, resumed, _timed(run_due_passes)


def _decide(thread_id: str) -> None:
    decisions = [classify(facts) for facts in gather(thread_id)]
    if decisions != [Decision.RESUME_FROM_LAST_STEP]:
        message = f"recovery would do something else: {decisions}"
        raise AssertionError(message)


def _record(thread_id: str, submission_id: UUID, amount: int) -> None:
    """Appends the steps as the lost attempt would have, in large batches: one each would take minutes."""
    tail, size = log.tail_of(thread_id), get_settings().max_batch_records
    with transaction.atomic():
        for first in range(0, amount, size):
            page = [_step(records.run_id(submission_id), number) for number in range(first, min(first + size, amount))]
            batch = Batch(page[0].record_id, page)
            appended = log.append(thread_id, batch, tail=tail, producer=log.this_process(1), at=clock.now())
            tail = appended.tail


def _step(run: str, number: int) -> NewRecord:
    name = f"step {number}"
    payload = StepSettled(run=run, name=name, attempt=1, output=canonical.encode(1))
    return NewRecord(records.step_id(run, name), payload)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
