"""The driver of plain functions: results, failures, steps, stops (DESIGN 4.4)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError, transaction
from pydantic import BaseModel

from agents import api, registry
from agents import log as log_module
from agents.attempt import Yielded
from agents.errors import AgentFailure, AgentInputError
from agents.log import Appended, Batch
from agents.models import Submission
from maintenance import drain
from maintenance.delivery import Outcome
from maintenance.errors import PassInterrupted
from maintenance.models import ThreadMaintenance
from maintenance.testing import deliver
from maintenance.work import PassWork
from tests.agents_kit import agents_database, endings, families, log, run, run_after_a_death, settled, sound

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


def outcome_of(declare: Declare, handler: Any, given: Any = None, **types: Any) -> api.Settlement:
    """What one submission to this handler comes to."""
    declare("tried", handler, **types)
    receipt = api.submit("t", "tried", given)
    run()
    sound()
    return settled(receipt)


def failure_of(declare: Declare, handler: Any, given: Any = None, **types: Any) -> tuple[str, str]:
    """The tag and text with which one submission to this handler fails."""
    found = outcome_of(declare, handler, given, **types)
    assert found.outcome == "failed"
    assert found.failure is not None
    return found.failure.error_tag, found.failure.message


def test_what_a_handler_returns_is_the_result(declare: Declare) -> None:
    found = outcome_of(declare, lambda ctx, given: {"twice": given["n"] * 2, "on": ctx.thread_id}, {"n": 4})

    assert (found.outcome, found.result, found.failure) == ("completed", {"twice": 8, "on": "t"}, None)
    assert families() == ["thread-created", "user-input", "submission-settled"]
    assert endings() == ["settled"]


def test_a_handler_may_return_nothing(declare: Declare) -> None:
    found = outcome_of(declare, lambda _ctx, _given: None)
    assert (found.outcome, found.result) == ("completed", None)


def test_62_the_input_is_in_the_log_before_the_handler_runs(declare: Declare) -> None:
    seen: list[list[str]] = []
    receipt_id = outcome_of(declare, lambda _ctx, _given: seen.append(families()), {"n": 1}).submission_id

    assert seen == [["thread-created", "user-input"]]
    record = log()[1]
    assert record.record_id == f"input:{receipt_id}"
    assert record.payload["input"] == {"n": 1}
    assert (record.payload["kind"], record.payload["run"]) == ("user", f"run:{receipt_id}")
    assert Submission.objects.get().first_sequence == record.sequence


def test_submissions_of_a_thread_run_one_after_another_in_order(declare: Declare) -> None:
    order: list[int] = []
    declare("tried", lambda _ctx, given: order.append(given))
    for n in range(5):
        api.submit("t", "tried", n)
    run()
    assert order == [0, 1, 2, 3, 4]
    sound()


def test_a_handler_sees_who_and_where_it_is(declare: Declare) -> None:
    declare("tried", lambda ctx, _: [ctx.thread_id, str(ctx.submission_id), ctx.agent, ctx.principal, ctx.attempt])
    receipt = api.submit("t", "tried", None, principal="alice")
    run()
    assert settled(receipt).result == ["t", str(receipt.submission_id), "tried", "alice", 1]


class Order(BaseModel):
    """An input and an output with a date, which plain JSON does not have."""

    number: int
    placed: datetime


def test_typed_input_and_output_are_validated_and_stored_as_json(declare: Declare) -> None:
    placed = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def handler(ctx: api.Context, order: Order) -> Order:
        assert isinstance(order, Order)
        return Order(number=order.number + 1, placed=order.placed)

    found = outcome_of(declare, handler, Order(number=1, placed=placed), input=Order, output=Order)

    assert found.result == {"number": 2, "placed": "2026-01-02T03:04:05Z"}
    assert Submission.objects.get().input == '{"number":1,"placed":"2026-01-02T03:04:05Z"}'


def test_a_plain_mapping_serves_as_typed_input(declare: Declare) -> None:
    found = outcome_of(
        declare, lambda _ctx, order: order.number, {"number": "7", "placed": "2026-01-02T03:04:05Z"}, input=Order
    )
    assert found.result == 7


def test_an_input_that_does_not_fit_is_refused_without_showing_it(declare: Declare) -> None:
    declare("tried", lambda _ctx, order: order.number, input=Order)
    with pytest.raises(AgentInputError, match=r"number: .*placed: Field required") as raised:
        api.submit("t", "tried", {"number": "hunter2"})
    assert "hunter2" not in raised.value.message
    assert not ThreadMaintenance.objects.exists()


def test_an_input_that_a_newer_release_cannot_read_fails_with_a_clear_text(declare: Declare) -> None:
    declare("tried", lambda _ctx, order: order.number, input=Order)
    receipt = api.submit("t", "tried", {"number": 1, "placed": "2026-01-02T03:04:05Z"})
    Submission.objects.update(input='{"number":1}')
    run()
    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "AgentInputError"
    assert "placed: Field required" in failure.message


@pytest.mark.parametrize(
    ("output", "types", "said"),
    [
        (object(), {}, "the output of the handler is not JSON: a value of type object has no JSON form"),
        ({"n": 2**60}, {}, "2^53 - 1"),
        ("many", {"output": int}, "the output does not fit: the value: "),
    ],
)
def test_81_an_output_of_the_wrong_kind_fails_the_submission(
    declare: Declare, output: Any, types: dict[str, Any], said: str
) -> None:
    tag, message = failure_of(declare, lambda _ctx, _given: output, **types)
    assert tag == "AgentOutputError"
    assert said in message


def test_an_output_that_is_too_large_fails_the_submission(declare: Declare, settings: Settings) -> None:
    settings.AGENTS = {"MAX_STEP_RESULT_BYTES": 10}
    tag, message = failure_of(declare, lambda _ctx, _given: "x" * 9)
    assert (tag, message) == ("AgentOutputError", "the output of the handler has 11 bytes; at most 10 are allowed")


def test_a_handler_that_raises_fails_its_submission_without_showing_the_foreign_text(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> None:
        raise ValueError("password=hunter2")

    tag, message = failure_of(declare, handler)

    assert tag == "ValueError"
    assert "hunter2" not in message
    assert set(log()[-1].payload["failure"]) == {"error_tag", "message"}


def test_a_failure_on_purpose_is_recorded_word_for_word(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> None:
        raise AgentFailure("the card was declined", tag="CardDeclined")

    assert failure_of(declare, handler) == ("CardDeclined", "the card was declined")


def test_56_tag_and_text_of_a_failure_are_bounded(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> None:
        raise AgentFailure("x" * 20_000, tag="T" * 300)

    tag, message = failure_of(declare, handler)
    assert (len(tag), len(message)) == (256, 16_384)


def test_a_failed_submission_does_not_stop_the_next_one(declare: Declare, echo: str) -> None:
    declare("broken", lambda _ctx, _given: 1 / 0)
    first, second = api.submit("t", "broken", 1), api.submit("t", echo, 2)
    run()
    assert (settled(first).outcome, settled(second).outcome) == ("failed", "completed")


def test_a_step_runs_once_and_returns_what_was_stored(declare: Declare) -> None:
    runs: list[int] = []

    def body(a: int, *, b: int) -> Any:
        runs.append(a + b)
        return {"pair": (a, b), "float": 1.0}

    found = outcome_of(declare, lambda ctx, _: ctx.step("sum", body, 1, b=2))

    assert found.result == {"pair": [1, 2], "float": 1}
    assert runs == [3]
    assert families() == ["thread-created", "user-input", "step-settled", "submission-settled"]
    assert log()[2].record_id == f"step:run:{found.submission_id}:sum"


def test_a_step_named_twice_in_one_run_fails_the_submission(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> None:
        for _ in range(2):
            ctx.step("same", lambda: 1)

    tag, message = failure_of(declare, handler)
    assert tag == "StepError"
    assert "step 'same' was used twice" in message


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\x00b"])
def test_a_step_needs_a_name_that_can_be_stored(declare: Declare, name: str) -> None:
    assert failure_of(declare, lambda ctx, _: ctx.step(name, lambda: 1))[0] == "StepError"


def test_a_step_output_that_is_not_json_fails_the_submission(declare: Declare) -> None:
    tag, message = failure_of(declare, lambda ctx, _: ctx.step("bad", object))
    assert (tag, message) == (
        "StepError",
        "the output of step 'bad' is not JSON: a value of type object has no JSON form",
    )


def test_a_step_output_that_is_too_large_fails_the_submission(declare: Declare, settings: Settings) -> None:
    settings.AGENTS = {"MAX_STEP_RESULT_BYTES": 10}
    tag, message = failure_of(declare, lambda ctx, _: ctx.step("big", lambda: "x" * 9))
    assert (tag, message) == ("StepError", "the output of step 'big' has 11 bytes; at most 10 are allowed")


def test_a_handler_may_catch_what_its_step_raises_and_go_on(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> str:
        try:
            ctx.step("risky", lambda: 1 / 0)
        except ZeroDivisionError:
            return str(ctx.step("fallback", lambda: "instead"))
        return "unreachable"

    assert outcome_of(declare, handler).result == "instead"


def test_a_step_inside_the_handlers_own_transaction_is_refused(declare: Declare) -> None:
    """Rolled back with that transaction, the record of a step would be none."""

    def handler(ctx: api.Context, given: Any) -> None:
        with transaction.atomic():
            ctx.step("inside", lambda: 1)

    tag, message = failure_of(declare, handler)
    assert tag == "StepError"
    assert "transaction.atomic()" in message
    assert "step-settled" not in families()


def test_a_coroutine_in_a_plain_handler_is_refused(declare: Declare) -> None:
    async def body() -> int:
        return 1

    tag, message = failure_of(declare, lambda ctx, _: ctx.step("async", body))
    assert tag == "StepError"
    assert "coroutine" in message


def test_a_handler_may_submit_to_its_own_and_to_other_threads(declare: Declare, echo: str) -> None:
    def handler(ctx: api.Context, given: Any) -> None:
        api.submit("t", echo, "own", idempotency_key="a")
        api.submit("other", echo, "other", idempotency_key="a")

    outcome_of(declare, handler)
    assert Submission.objects.filter(state="settled").count() == 3
    sound("other")


def test_an_attempt_yields_before_its_next_step_and_goes_on_after_the_last_one(declare: Declare) -> None:
    runs: list[str] = []

    def body(name: str) -> str:
        runs.append(name)
        return name

    def handler(ctx: api.Context, given: Any) -> list[str]:
        one = ctx.step("one", body, "one")
        if ctx.attempt == 1:
            drain.request()
            assert ctx.should_yield()
        two = ctx.step("two", body, "two")
        return [one, two]

    declare("tried", handler)
    receipt = api.submit("t", "tried", None)

    assert deliver("t").outcome is Outcome.RAN
    assert api.settlement(receipt) is None
    assert runs == ["one"]
    drain.reset()
    run()

    assert runs == ["one", "two"]
    assert settled(receipt).result == ["one", "two"]
    assert endings() == ["yielded", "settled"]
    sound()


def test_nothing_is_begun_while_the_worker_drains(declare: Declare, echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    drain.request()
    assert deliver("t").outcome is Outcome.RAN
    assert (Submission.objects.get().state, endings()) == ("ready", [])
    drain.reset()
    run_after_a_death()
    assert settled(receipt).attempts == 1


def test_a_yield_that_the_handler_swallows_settles_nothing(declare: Declare) -> None:
    def handler(ctx: api.Context, given: Any) -> str:
        if ctx.attempt == 1:
            drain.request()
            try:
                ctx.step("one", lambda: 1)
            except Yielded:
                return "a result that a step never gave"
        return "finished"

    declare("tried", handler)
    receipt = api.submit("t", "tried", None)
    deliver("t")
    drain.reset()
    assert api.settlement(receipt) is None
    run_after_a_death()
    assert settled(receipt).result == "finished"


@pytest.mark.parametrize("stop", [SoftTimeLimitExceeded(), PassInterrupted("lease lost")])
def test_an_interruption_in_the_handler_settles_nothing(declare: Declare, stop: BaseException) -> None:
    def handler(ctx: api.Context, given: Any) -> str:
        if ctx.attempt == 1:
            raise stop
        return "finished"

    declare("tried", handler)
    receipt = api.submit("t", "tried", None)

    assert deliver("t").outcome is Outcome.INTERRUPTED
    assert api.settlement(receipt) is None
    assert endings() == ["interrupted"]
    run_after_a_death()
    assert settled(receipt).result == "finished"


def test_a_handler_that_outlives_the_deadline_settles_nothing(declare: Declare) -> None:
    """Celery's soft limit is an ordinary exception, so a handler may swallow it; the deadline it cannot."""

    def handler(ctx: api.Context, given: Any) -> str:
        if ctx.attempt > 1:
            return "in time"
        let_the_deadline_pass(ctx)
        return "too late"

    declare("tried", handler)
    receipt = api.submit("t", "tried", None)
    assert deliver("t").outcome is Outcome.INTERRUPTED
    assert api.settlement(receipt) is None
    run_after_a_death()
    assert settled(receipt).result == "in time"


def let_the_deadline_pass(ctx: api.Context) -> None:
    work = ctx._attempt.work
    assert isinstance(work, PassWork)
    work.deadline = 0.0


def test_a_failing_store_under_a_step_is_not_taken_for_the_handlers_failure(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the handler catches everything: the attempt ends, the submission stays owed."""

    def handler(ctx: api.Context, given: Any) -> str:
        try:
            ctx.step("one", lambda: 1)
        except BaseException:  # noqa: BLE001 - the worst a handler can do
            return "swallowed"
        return "finished"

    original = log_module.append

    def refuse_once(thread_id: str, batch: Batch, **options: Any) -> Appended:
        if batch.batch_id.startswith("step:"):
            monkeypatch.setattr(log_module, "append", original)
            raise OperationalError("gone")
        return original(thread_id, batch, **options)

    declare("tried", handler)
    receipt = api.submit("t", "tried", None)
    monkeypatch.setattr(log_module, "append", refuse_once)

    assert deliver("t").outcome is Outcome.FAILED
    assert api.settlement(receipt) is None
    assert endings() == ["failed"]
    run_after_a_death()
    assert settled(receipt).result == "finished"


def test_a_head_whose_agent_is_not_known_here_waits_and_fails_the_pass(declare: Declare) -> None:
    declare("tried", lambda _ctx, given: given)
    receipt = api.submit("t", "tried", 1)
    registry.unregister("tried")
    result = deliver("t")

    assert result.outcome is Outcome.FAILED
    assert "binding missing in this worker: no agent named 'tried'" in result.error
    row = Submission.objects.get()
    assert (row.state, row.attempts, endings()) == ("ready", 0, [])
    maintenance = ThreadMaintenance.objects.get()
    assert maintenance.is_dirty
    assert maintenance.alarm_at is not None
    declare("tried", lambda _ctx, given: given)
    run_after_a_death()
    assert settled(receipt).outcome == "completed"
