"""Unknown outcomes (ledger-recovery, f.2 and g.4; scenarios L 151-163, T): marked, looked up, answered, applied."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from agents import aborts, api, failpoints, registry, tools
from agents.errors import UnknownSubmission
from agents.models import AbortIntent, LogRecord, Submission, ToolCall, UnknownResolution
from maintenance.delivery import Outcome
from maintenance.testing import Crash, deliver, travel
from tests.agents_kit import LEASE, agents_database, endings, families, log, run, run_after_a_death, settled, sound
from tests.concurrency import elsewhere, someone_waits_for_a_lock, wait_until
from tests.factories import row_of
from tests.tools_kit import World, call_rows, crash, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["world"]

pytestmark = agents_database

RESOLUTIONS = ["completed-with-result", "failed-with-error", "never-started", "safe-retry", "abort"]
RESULTS = {"completed-with-result": {"charged": 5}, "failed-with-error": "it was declined"}


def call_one(declare: Declare, world: World, name: str = "charge", **options: Any) -> api.Receipt:
    """Submit to an agent that calls one tool of these options."""
    world.tool(name, **options)
    declare("buyer", lambda ctx, _: ctx.call_tool(name, amount=5))
    return api.submit("t", "buyer", None)


@pytest.fixture
def unknown(declare: Declare, world: World, points: Failpoints) -> api.Receipt:
    """Return a submission whose call of the ordinary tool `charge` had its effect and is shown to a person."""
    receipt = call_one(declare, world)
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()
    assert state() == "unknown"
    return receipt


class SideBySide:
    """Two calls, `one` and `two`, that a coroutine handler makes at once; its process dies while both are open."""

    def __init__(self, declare: Declare, world: World) -> None:
        self.declare, self.world = declare, world

    def open(self, one: dict[str, Any] | None = None, two: dict[str, Any] | None = None) -> api.Receipt:
        """Both were prepared and had their effect, and nobody recorded a result."""
        for name, options in (("one", one), ("two", two)):
            api.tool(name, **(options or {}))(self._tool(name))
        self.declare("pair", self._handler)
        receipt = api.submit("t", "pair", None)
        with pytest.raises(Crash):
            deliver("t")
        assert call_rows() == [("one", "prepared", 1), ("two", "prepared", 1)]
        travel(LEASE)
        return receipt

    async def _handler(self, ctx: api.AsyncContext, given: Any) -> list[Any]:
        self.both = asyncio.Barrier(2)
        self.dies = ctx.attempt == 1
        return list(await asyncio.gather(ctx.call_tool("one"), ctx.call_tool("two")))

    def _tool(self, name: str) -> Callable[[], Any]:
        async def tool() -> str:
            self.world.did.append(name)
            if self.dies:
                await self.both.wait()
                raise Crash("t")
            return f"{name} again"

        return tool


@pytest.fixture
def pair(declare: Declare, world: World) -> SideBySide:
    return SideBySide(declare, world)


def state() -> str:
    return Submission.objects.get().state


def resolve(receipt: api.Receipt, resolution: str, call: str = "charge", **more: Any) -> api.Resolution:
    if "result" not in more and resolution in RESULTS:
        more["result"] = RESULTS[resolution]
    return api.resolve_unknown(receipt, call, resolution, **{"actor": "ann", "reason": "looked it up", **more})


def come_to_rest() -> None:
    """One pass more: what an attempt marked, recovery has not looked at yet."""
    travel(timedelta(seconds=1))
    assert len(run()) == 1


def tool_records() -> list[tuple[str, str, int]]:
    """Family, call and try of every record about a call."""
    return [
        (record.family, record.payload["call"], record.payload["tries"])
        for record in log()
        if record.family.startswith("tool-")
    ]


# --- marking


def test_151_an_open_call_of_an_ordinary_tool_is_shown_to_a_person(unknown: api.Receipt, world: World) -> None:
    assert world.counts["charge"] == 1
    assert call_rows() == [("charge", "unknown", 1)]
    assert families()[2:] == ["tool-prepared", "tool-unknown", "repair-annotated"]
    assert log()[3].payload["reason"] == "the attempt that made the call ended without recording a result"
    assert endings() == [""]
    sound(all_settled=False)


def test_157_an_unknown_call_is_a_stable_wait_that_no_pass_disturbs(unknown: api.Receipt, world: World) -> None:
    row = row_of()
    assert (row.alarm_at, row.is_dirty) == (None, False)
    before = families()

    deliver("t", forced=True)

    assert families() == before
    assert world.counts["charge"] == 1
    assert state() == "unknown"


def test_work_behind_an_unknown_call_waits_and_runs_after_it(unknown: api.Receipt, echo: str) -> None:
    follower = api.submit("t", echo, 1)
    run()
    assert api.settlement(follower) is None
    assert row_of().alarm_at is None

    resolve(unknown, "never-started")
    run()

    assert settled(follower).result == 1
    sound()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", [failpoints.UNKNOWN_BEFORE, failpoints.UNKNOWN_WRITTEN, failpoints.UNKNOWN_AFTER])
def test_f4_call_record_and_state_are_marked_in_one_commit(
    declare: Declare, world: World, points: Failpoints, name: str
) -> None:
    call_one(declare, world)
    crash(points, failpoints.TOOL_RAN)
    travel(LEASE)
    crash(points, name)

    marked = name == failpoints.UNKNOWN_AFTER
    assert (state(), call_rows()[0][1], "tool-unknown" in families()) == (
        ("unknown", "unknown", True) if marked else ("input_applied", "prepared", False)
    )
    run_after_a_death()
    assert state() == "unknown"
    assert families().count("tool-unknown") == 1
    assert world.counts["charge"] == 1
    sound(all_settled=False)


def test_f4_a_mark_without_a_call_is_cleared_and_the_run_goes_on(declare: Declare, points: Failpoints) -> None:
    """Nothing open, nothing unknown: one repair, not one on every pass. Only a hand can make such a row."""
    declare("stepping", lambda ctx, _: ctx.step("one", lambda: 1))
    receipt = api.submit("t", "stepping", None)
    crash(points, failpoints.STEP_AFTER)
    Submission.objects.update(state="unknown")
    run_after_a_death()
    assert settled(receipt).result == 1
    assert families().count("repair-annotated") == 1


def test_284_f4_a_pass_that_lost_its_thread_marks_nothing(declare: Declare, world: World, points: Failpoints) -> None:
    """The fence: a stale mark would block a run that has gone on."""
    world.tool("charge")
    declare("buyer", lambda ctx, _: [ctx.call_tool("charge", amount=5), ctx.step("after", lambda: 1)])
    receipt = api.submit("t", "buyer", None)
    crash(points, failpoints.TOOL_RAN)
    travel(LEASE)

    def go_on_elsewhere(thread_id: str) -> None:
        travel(LEASE)
        deliver(thread_id)
        resolve(receipt, "completed-with-result")
        crash(points, failpoints.STEP_BEFORE)

    points.arm(failpoints.UNKNOWN_BEFORE, go_on_elsewhere)
    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert (state(), call_rows()) == ("input_applied", [("charge", "settled", 1)])
    run_after_a_death()
    assert settled(receipt).result == [{"charged": 5}, 1]
    assert families().count("tool-unknown") == 1
    sound()


@pytest.mark.parametrize("kind", ["ordinary", "idempotent"])
def test_288_f10_the_abort_of_a_call_that_runs_says_that_its_effect_is_unknown(
    declare: Declare, world: World, settings: Settings, kind: Any
) -> None:
    settings.AGENTS = {"ABORT_POLL_MS": 5}

    @api.tool("endless", kind=kind)
    async def endless() -> None:
        world.did.append("endless")
        await sync_to_async(aborts.abort)(receipt.submission_id, author="ann", reason="enough")
        await asyncio.Event().wait()

    async def handler(ctx: api.AsyncContext, given: Any) -> None:
        await ctx.call_tool("endless")

    declare("patient", handler)
    receipt = api.submit("t", "patient", None)
    run()

    assert settled(receipt).outcome == "aborted"
    assert tool_records() == [("tool-prepared", "endless", 1), ("tool-unknown", "endless", 1)]
    assert world.counts["endless"] == 1
    sound()


# --- a tool that cannot tell


def no_answer() -> None:
    raise api.OutcomeUnknown("the request was sent, no answer came")


def test_an_ordinary_tool_that_cannot_tell_is_shown_to_a_person_at_once(declare: Declare, world: World) -> None:
    call_one(declare, world, does=no_answer)
    run()
    assert state() == "unknown"
    assert endings() == ["suspended"]
    assert log()[3].payload["reason"] == "the request was sent, no answer came"
    assert ToolCall.objects.get().unknown_reason == "the request was sent, no answer came"
    come_to_rest()
    assert row_of().alarm_at is None
    assert world.counts["charge"] == 1


@pytest.mark.parametrize("name", [failpoints.UNKNOWN_BEFORE, failpoints.UNKNOWN_WRITTEN, failpoints.UNKNOWN_AFTER])
def test_a_crash_while_a_tool_says_that_it_cannot_tell_marks_it_once(
    declare: Declare, world: World, points: Failpoints, name: str
) -> None:
    call_one(declare, world, does=no_answer)
    crash(points, name)
    run_after_a_death()
    assert state() == "unknown"
    assert tool_records() == [("tool-prepared", "charge", 1), ("tool-unknown", "charge", 1)]
    assert world.counts["charge"] == 1


def test_a_handler_cannot_settle_over_a_call_that_became_unknown(declare: Declare, world: World) -> None:
    world.tool("charge", does=no_answer)

    def handler(ctx: api.Context, given: Any) -> str:
        try:
            ctx.call_tool("charge", amount=5)
        except BaseException:  # noqa: BLE001 - the worst a handler can do
            return "swallowed"
        return "done"

    declare("buyer", handler)
    receipt = api.submit("t", "buyer", None)
    run()
    assert api.settlement(receipt) is None
    assert state() == "unknown"


def test_an_idempotent_tool_that_cannot_tell_is_run_again_under_its_key(declare: Declare, world: World) -> None:
    def second_time() -> str:
        if world.counts["put"] == 1:
            no_answer()
        return "put"

    receipt = call_one(declare, world, "put", does=second_time, kind="idempotent")
    assert deliver("t").outcome is Outcome.FAILED
    run_after_a_death()
    assert settled(receipt).result == "put"
    assert endings() == ["failed", "settled"]
    assert len(set(world.keys)) == 1


def test_a_reconciled_tool_that_cannot_tell_is_looked_up(declare: Declare, world: World) -> None:
    receipt = call_one(declare, world, does=no_answer, reconcile=lambda _: api.Done("found"))
    deliver("t")
    run_after_a_death()
    assert settled(receipt).result == "found"
    assert world.counts["charge"] == 1


# --- reconciling


def open_reconciled(declare: Declare, world: World, points: Failpoints, answers: Callable[[Any], Any]) -> api.Receipt:
    """A call of a reconciled tool had its effect, and its process died."""
    receipt = call_one(declare, world, reconcile=answers)
    crash(points, failpoints.TOOL_RAN)
    travel(LEASE)
    return receipt


def test_154_what_a_reconciler_found_is_the_result(declare: Declare, world: World, points: Failpoints) -> None:
    receipt = open_reconciled(declare, world, points, lambda _: api.Done({"charged": 5}))
    run()

    assert settled(receipt).result == {"charged": 5}
    assert world.counts["charge"] == 1
    ended, resolved = log()[3:5]
    assert (ended.payload["by"], resolved.payload["author"]) == ("reconciler", "reconciler")
    assert resolved.payload["resolution"] == "completed-with-result"
    assert families() == [
        "thread-created",
        "user-input",
        "tool-prepared",
        "tool-settled",
        "tool-resolved",
        "submission-settled",
    ]
    assert call_rows() == [("charge", "settled", 1)]
    sound()


def test_a_failure_that_a_reconciler_found_is_the_failure_of_the_call(
    declare: Declare, world: World, points: Failpoints
) -> None:
    receipt = open_reconciled(declare, world, points, lambda _: api.Failed("the card was declined"))
    run()
    failure = settled(receipt).failure
    assert failure is not None
    assert failure.message == "call 'charge' of tool 'charge' failed: the card was declined"
    assert world.counts["charge"] == 1


@pytest.mark.parametrize(("answer", "said"), [(api.NeverStarted(), "never-started"), (api.SafeRetry(), "safe-retry")])
def test_163_a_call_that_may_run_is_run_again_as_a_new_try(
    declare: Declare, world: World, points: Failpoints, answer: Any, said: str
) -> None:
    receipt = open_reconciled(declare, world, points, lambda _: answer)
    run()
    assert settled(receipt).result == "charge 5"
    assert world.counts["charge"] == 2
    assert tool_records() == [
        ("tool-prepared", "charge", 1),
        ("tool-resolved", "charge", 1),
        ("tool-prepared", "charge", 2),
        ("tool-settled", "charge", 2),
    ]
    assert log()[3].payload["resolution"] == said
    assert call_rows() == [("charge", "settled", 2)]
    sound()


def broken(_: Any) -> Any:
    raise ConnectionError("password=hunter2")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (lambda _: api.StillUnknown("not in the list yet"), "not in the list yet"),
        (broken, "the reconciler failed: ConnectionError was raised"),
        (lambda _: None, "the reconciler gave no answer but a NoneType"),
        (lambda _: api.Done(object()), "the reconciler's result is not JSON: a value of type object has no JSON form"),
    ],
)
def test_a_reconciler_without_a_usable_answer_leaves_the_call_to_a_person(
    declare: Declare, world: World, points: Failpoints, answers: Any, said: str
) -> None:
    open_reconciled(declare, world, points, answers)
    run()
    assert state() == "unknown"
    assert said in log()[3].payload["reason"]
    assert world.counts["charge"] == 1
    assert not LogRecord.objects.filter(text__contains="hunter2").exists()


def test_a_call_whose_tool_nobody_declares_any_more_is_left_to_a_person(
    declare: Declare, world: World, points: Failpoints
) -> None:
    open_reconciled(declare, world, points, lambda _: api.Done(1))
    tools.unregister("charge")
    run()
    assert state() == "unknown"
    assert "no reconciler of tool 'charge' is declared" in log()[3].payload["reason"]


def test_a_reconciler_is_told_everything_about_the_call_and_asked_outside_any_transaction(
    declare: Declare, world: World, points: Failpoints
) -> None:
    asked: list[api.OpenCall] = []

    def answers(call: api.OpenCall) -> api.Done:
        assert not connection.in_atomic_block
        asked.append(call)
        return api.Done()

    receipt = open_reconciled(declare, world, points, answers)
    run()
    (call,) = asked
    assert (call.thread_id, call.submission_id, call.call, call.tool) == (
        "t",
        receipt.submission_id,
        "charge",
        "charge",
    )
    assert (call.arguments, call.tries) == ({"amount": 5}, 1)
    assert call.digest == log()[2].payload["digest"]
    assert [call.idempotency_key] == world.keys


def test_a_reconciler_may_be_a_coroutine_function(declare: Declare, world: World, points: Failpoints) -> None:
    async def answers(_: Any) -> api.Done:
        await asyncio.sleep(0)
        return api.Done("found")

    receipt = open_reconciled(declare, world, points, answers)
    run()
    assert settled(receipt).result == "found"


RECONCILING = [failpoints.RECONCILE_BEFORE, failpoints.RECONCILE_WRITTEN, failpoints.RECONCILE_AFTER]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("name", RECONCILING)
@pytest.mark.parametrize("answer", [api.Done("found"), api.SafeRetry()])
def test_a_crash_while_an_answer_is_recorded_asks_again_or_goes_on(
    declare: Declare, world: World, points: Failpoints, name: str, answer: Any
) -> None:
    asked: list[int] = []

    def answers(_: Any) -> Any:
        asked.append(1)
        return answer

    receipt = open_reconciled(declare, world, points, answers)
    crash(points, name)
    run_after_a_death()

    done = isinstance(answer, api.Done)
    assert settled(receipt).result == ("found" if done else "charge 5")
    assert world.counts["charge"] == (1 if done else 2)
    assert len(asked) == (1 if name == failpoints.RECONCILE_AFTER else 2)
    assert families().count("tool-resolved") == families().count("tool-settled") == 1
    sound()


@pytest.mark.parametrize("late", [api.SafeRetry(), api.Done("too late")])
def test_a_pass_that_lost_its_thread_while_it_asked_records_no_answer(
    declare: Declare, world: World, points: Failpoints, late: Any
) -> None:
    """Who took over asked as well and found nobody who can tell: a person has the word now."""
    asked: list[int] = []

    def answers(_: Any) -> Any:
        asked.append(1)
        if len(asked) > 1:
            return api.StillUnknown()
        travel(LEASE)
        assert deliver("t").outcome is Outcome.RAN
        return late

    open_reconciled(declare, world, points, answers)
    assert deliver("t").outcome is Outcome.LEASE_LOST

    assert (state(), call_rows()) == ("unknown", [("charge", "unknown", 1)])
    assert tool_records() == [("tool-prepared", "charge", 1), ("tool-unknown", "charge", 1)]
    sound(all_settled=False)


def test_a_tool_that_kills_its_worker_each_time_is_not_permitted_for_ever(
    declare: Declare, world: World, settings: Settings
) -> None:
    settings.AGENTS = {"RETRY_BUDGET": 3}

    def die() -> None:
        raise Crash("t")

    receipt = call_one(declare, world, does=die, reconcile=lambda _: api.SafeRetry())
    for _ in range(3):
        with pytest.raises(Crash):
            deliver("t")
        travel(LEASE)
    run()

    failure = settled(receipt).failure
    assert failure is not None
    assert failure.error_tag == "AttemptsExhausted"
    assert world.counts["charge"] == 3
    sound()


# --- several calls


def test_153_two_unknown_calls_get_an_answer_each(pair: SideBySide, world: World) -> None:
    receipt = pair.open()
    run()
    assert call_rows() == [("one", "unknown", 1), ("two", "unknown", 1)]

    resolve(receipt, "completed-with-result", "one", result="by ann")
    run()
    assert state() == "unknown", "155: a partial answer keeps the queue waiting"
    resolve(receipt, "never-started", "two")
    run()

    assert settled(receipt).result == ["by ann", "two again"]
    assert world.counts == {"one": 1, "two": 2}
    sound()


def test_154_one_call_is_looked_up_and_the_other_shown(pair: SideBySide, world: World) -> None:
    receipt = pair.open(one={"reconcile": lambda _: api.Done("found")})
    run()
    assert call_rows() == [("one", "settled", 1), ("two", "unknown", 1)]
    resolve(receipt, "completed-with-result", "two", result="by ann")
    run()
    assert settled(receipt).result == ["found", "by ann"]
    assert world.counts == {"one": 1, "two": 1}


def test_f46_a_call_that_becomes_unknown_later_has_a_record_of_its_own(pair: SideBySide, world: World) -> None:
    """302: call one is uncertain, two may be repeated; after one is resolved, two dies again and nobody can tell."""
    answers = [api.SafeRetry(), api.StillUnknown("now nobody can tell")]
    receipt = pair.open(two={"reconcile": lambda _: answers.pop(0)})
    run()
    assert call_rows() == [("one", "unknown", 1), ("two", "permitted", 1)]
    resolve(receipt, "completed-with-result", "one", result="by ann")
    pair_dies_again_in_two(pair)
    run_after_a_death()

    assert call_rows() == [("one", "settled", 1), ("two", "unknown", 2)]
    assert [entry for entry in tool_records() if entry[0] == "tool-unknown"] == [
        ("tool-unknown", "one", 1),
        ("tool-unknown", "two", 2),
    ]
    resolve(receipt, "completed-with-result", "two", result="by ann too")
    run()
    assert settled(receipt).result == ["by ann", "by ann too"]
    sound()


def pair_dies_again_in_two(pair: SideBySide) -> None:
    """The process dies once more, while the only call that still runs is `two`."""

    async def handler(ctx: api.AsyncContext, given: Any) -> list[Any]:
        pair.both, pair.dies = asyncio.Barrier(1), ctx.attempt == 2
        return list(await asyncio.gather(ctx.call_tool("one"), ctx.call_tool("two")))

    registry.unregister("pair")
    pair.declare("pair", handler)
    with pytest.raises(Crash):
        deliver("t")


def test_an_open_call_found_beside_an_unknown_one_is_looked_at_too(pair: SideBySide, points: Failpoints) -> None:
    """One rule of coverage: nothing goes on while any call is open, marked or not."""
    asked: list[str] = []

    def answers(call: api.OpenCall) -> Any:
        asked.append(call.call)
        if len(asked) == 1:
            raise Crash("t")
        return api.StillUnknown()

    receipt = pair.open(two={"reconcile": answers})
    with pytest.raises(Crash):
        deliver("t")
    ToolCall.objects.filter(call="one").update(status="unknown")
    Submission.objects.update(state="unknown")
    run_after_a_death()
    assert call_rows() == [("one", "unknown", 1), ("two", "unknown", 1)]
    assert state() == "unknown"
    del receipt


# --- answering


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_152_158_each_answer_leads_where_it_says(unknown: api.Receipt, world: World, resolution: str) -> None:
    given = resolve(unknown, resolution)
    assert (given.author, given.reason, given.tries, given.replayed) == ("ann", "looked it up", 1, False)
    run()

    found = settled(unknown)
    runs_again = resolution in {"never-started", "safe-retry"}
    assert world.counts["charge"] == (2 if runs_again else 1)
    assert (found.outcome, found.result) == {
        "completed-with-result": ("completed", {"charged": 5}),
        "failed-with-error": ("failed", None),
        "never-started": ("completed", "charge 5"),
        "safe-retry": ("completed", "charge 5"),
        "abort": ("aborted", None),
    }[resolution]
    if resolution == "abort":
        assert "tool-resolved" not in families()
        intent = AbortIntent.objects.get()
        assert (intent.author, intent.reason) == ("ann", "looked it up")
    else:
        record = next(one for one in log() if one.family == "tool-resolved")
        assert (record.payload["resolution"], record.payload["author"]) == (resolution, "ann")
        assert record.payload["reason"] == "looked it up"
    assert row_of().alarm_at is None
    sound()


def test_an_error_that_a_person_found_reaches_the_handler_as_any_other(unknown: api.Receipt) -> None:
    resolve(unknown, "failed-with-error")
    run()
    failure = settled(unknown).failure
    assert failure is not None
    assert failure.message == "call 'charge' of tool 'charge' failed: it was declined"
    assert next(one for one in log() if one.family == "tool-settled").payload["by"] == "operator"


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_156_the_same_answer_again_gives_the_first_one(unknown: api.Receipt, resolution: str) -> None:
    first = resolve(unknown, resolution)
    before = row_of().dirty
    again = resolve(unknown, resolution, reason="said it twice", actor="bob")
    assert again == first
    assert (again.author, again.reason, again.replayed) == ("ann", "looked it up", True)
    assert row_of().dirty == before, "nothing was written"
    assert UnknownResolution.objects.count() == 1


def test_156_the_same_answer_after_it_was_applied_gives_the_first_one(unknown: api.Receipt) -> None:
    first = resolve(unknown, "completed-with-result")
    run()
    assert resolve(unknown, "completed-with-result") == first


@pytest.mark.parametrize("other", RESOLUTIONS[1:])
def test_156_another_answer_is_refused(unknown: api.Receipt, other: str) -> None:
    resolve(unknown, "completed-with-result")
    before = row_of().dirty
    with pytest.raises(api.UnknownResolutionConflict, match="ann has resolved the call: completed-with-result"):
        resolve(unknown, other)
    assert row_of().dirty == before
    assert not AbortIntent.objects.exists()


def test_156_another_result_is_another_answer(unknown: api.Receipt) -> None:
    resolve(unknown, "completed-with-result")
    with pytest.raises(api.UnknownResolutionConflict):
        resolve(unknown, "completed-with-result", result={"charged": 6})


def test_an_answer_about_an_earlier_try_is_refused(unknown: api.Receipt, world: World, points: Failpoints) -> None:
    """A repeated click must not answer the second accident, which its author has never seen."""
    resolve(unknown, "safe-retry", tries=1)
    crash(points, failpoints.TOOL_RAN)
    run_after_a_death()
    assert call_rows() == [("charge", "unknown", 2)]

    with pytest.raises(api.CallNotUnknown, match="try 1 of the call is not the present one, which is 2"):
        resolve(unknown, "safe-retry", tries=1)
    resolve(unknown, "completed-with-result", tries=2)
    run()

    assert settled(unknown).result == {"charged": 5}
    assert world.counts["charge"] == 2
    assert tool_records() == [
        ("tool-prepared", "charge", 1),
        ("tool-unknown", "charge", 1),
        ("tool-resolved", "charge", 1),
        ("tool-prepared", "charge", 2),
        ("tool-unknown", "charge", 2),
        ("tool-settled", "charge", 2),
        ("tool-resolved", "charge", 2),
    ]
    sound()


def test_300_f23_an_answer_for_a_call_that_was_never_made_is_refused(unknown: api.Receipt) -> None:
    with pytest.raises(api.CallNotUnknown, match="the submission has made no call 'refund'"):
        resolve(unknown, "never-started", "refund")
    assert not UnknownResolution.objects.exists()


def test_300_f23_an_answer_for_a_call_that_is_not_unknown_is_refused(declare: Declare, world: World) -> None:
    world.tool("charge")

    def handler(ctx: api.Context, given: Any) -> None:
        ctx.call_tool("charge", amount=5)
        ctx.wait_event("never")

    declare("buyer", handler)
    receipt = api.submit("t", "buyer", None)
    run()
    with pytest.raises(api.CallNotUnknown, match="the call is settled, not unknown"):
        resolve(receipt, "never-started")


def test_156_an_answer_for_a_settled_submission_is_refused(unknown: api.Receipt) -> None:
    resolve(unknown, "abort")
    run()
    UnknownResolution.objects.all().delete()
    with pytest.raises(api.CallNotUnknown, match="the submission is settled: aborted"):
        resolve(unknown, "never-started")


def test_an_answer_for_no_submission_is_refused(world: World) -> None:
    with pytest.raises(UnknownSubmission):
        api.resolve_unknown("0190b6f0-0000-7000-8000-000000000000", "a", "abort", actor="ann", reason="b")


@pytest.mark.parametrize(
    ("resolution", "result", "said"),
    [
        ("maybe", None, "a resolution is one of completed-with-result"),
        ("never-started", 1, "never-started takes no result"),
        ("failed-with-error", None, "failed-with-error needs the text of the error"),
        ("failed-with-error", {"no": "text"}, "failed-with-error needs the text of the error"),
        ("completed-with-result", object(), "the result is not JSON"),
        ("completed-with-result", "x" * 99, "the result has 101 bytes; at most 50 are allowed"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(
    unknown: api.Receipt, settings: Settings, resolution: str, result: Any, said: str
) -> None:
    settings.AGENTS = {"MAX_STEP_RESULT_BYTES": 50}
    with pytest.raises(api.CallRefused, match=said):
        resolve(unknown, resolution, result=result)
    assert not UnknownResolution.objects.exists()


def test_a_result_of_nothing_is_a_result(unknown: api.Receipt) -> None:
    resolve(unknown, "completed-with-result", result=None)
    run()
    assert (settled(unknown).outcome, settled(unknown).result) == ("completed", None)


@pytest.mark.parametrize("resolution", RESOLUTIONS)
@pytest.mark.parametrize("name", [failpoints.RESOLVE_BEFORE, failpoints.RESOLVE_WRITTEN, failpoints.RESOLVE_AFTER])
def test_159_f2_a_crash_while_an_answer_is_given_leaves_all_of_it_or_nothing(
    unknown: api.Receipt, world: World, points: Failpoints, name: str, resolution: str
) -> None:
    """282: an abort and its intent are one write, so no crash lets the tool run again that was to be given up."""
    points.crash_at(name)
    with pytest.raises(Crash):
        resolve(unknown, resolution)

    given = name == failpoints.RESOLVE_AFTER
    assert UnknownResolution.objects.exists() is given
    assert AbortIntent.objects.exists() is (given and resolution == "abort")
    resolve(unknown, resolution)
    run()

    assert world.counts["charge"] == (2 if resolution in {"never-started", "safe-retry"} else 1)
    assert settled(unknown).outcome == {"abort": "aborted", "failed-with-error": "failed"}.get(resolution, "completed")
    sound()


@pytest.mark.postgres
def test_of_two_people_at_once_one_answers_and_the_other_is_told(unknown: api.Receipt, points: Failpoints) -> None:
    """The second waits for the gate while the first has written and not committed, and then finds the answer."""
    with ThreadPoolExecutor(1) as ann:
        others: list[Future[str]] = []

        def ann_comes_second(_: str) -> None:
            others.append(ann.submit(answer_on_another_connection, unknown))
            wait_until(lambda: elsewhere(someone_waits_for_a_lock), "the second person waits for the first")

        points.arm(failpoints.RESOLVE_WRITTEN, ann_comes_second)
        resolve(unknown, "completed-with-result", actor="bob")
        assert others[0].result() == "bob has resolved the call: completed-with-result"
    run()
    assert settled(unknown).result == {"charged": 5}
    assert not AbortIntent.objects.exists()


def answer_on_another_connection(receipt: api.Receipt) -> str:
    try:
        resolve(receipt, "abort")
    except api.UnknownResolutionConflict as conflict:
        return conflict.message
    finally:
        connection.close()
    return "answered"


def test_f1_an_abort_ends_a_submission_with_an_unknown_call(unknown: api.Receipt, world: World) -> None:
    aborts.abort(unknown.submission_id, author="ann", reason="enough")
    run()
    assert settled(unknown).outcome == "aborted"
    assert world.counts["charge"] == 1
    sound()


def test_283_f3_giving_up_for_one_of_two_calls_ends_the_submission(pair: SideBySide, world: World) -> None:
    receipt = pair.open()
    run()
    resolve(receipt, "abort", "two")
    run()
    assert settled(receipt).outcome == "aborted"
    assert world.counts == {"one": 1, "two": 1}
    sound()


# --- applying


APPLYING = [failpoints.APPLY_BEFORE, failpoints.APPLY_WRITTEN, failpoints.APPLY_AFTER]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("resolution", [one for one in RESOLUTIONS if one != "abort"])
@pytest.mark.parametrize("name", APPLYING)
def test_a_crash_while_answers_are_applied_applies_them_once(
    unknown: api.Receipt, world: World, points: Failpoints, name: str, resolution: str
) -> None:
    resolve(unknown, resolution)
    crash(points, name)
    assert state() == ("input_applied" if name == failpoints.APPLY_AFTER else "unknown")
    run_after_a_death()

    assert api.settlement(unknown) is not None
    assert families().count("tool-resolved") == 1
    assert world.counts["charge"] == (2 if resolution in {"never-started", "safe-retry"} else 1)
    sound()


def test_a_call_permitted_by_a_person_that_dies_again_is_unknown_again(
    unknown: api.Receipt, world: World, points: Failpoints
) -> None:
    resolve(unknown, "never-started")
    crash(points, failpoints.TOOL_PREPARED)
    run_after_a_death()
    assert call_rows() == [("charge", "unknown", 2)]
    assert state() == "unknown"
    assert world.counts["charge"] == 1


def test_answering_wakes_the_thread(unknown: api.Receipt) -> None:
    assert row_of().alarm_at is None
    resolve(unknown, "never-started")
    row = row_of()
    assert row.is_dirty
    assert row.alarm_at is not None
