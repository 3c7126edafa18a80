"""People answer unknown calls, and a pass applies the answers (ledger-recovery, f.2; scenarios L 152-159, T)."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from agents import aborts, api, failpoints
from agents.errors import UnknownSubmission
from agents.models import AbortIntent, UnknownResolution
from maintenance.testing import Crash
from tests.agents_kit import agents_database, families, log, run, run_after_a_death, settled, sound
from tests.concurrency import elsewhere, someone_waits_for_a_lock, wait_until
from tests.factories import row_of
from tests.tools_kit import World, call_rows, crash, world
from tests.unknown_kit import RESOLUTIONS, SideBySide, pair, resolve, state, tool_records, unknown

if TYPE_CHECKING:
    from pytest_django import Settings

    from maintenance.testing import Failpoints
    from tests.integration.agents.conftest import Declare

__all__ = ["pair", "unknown", "world"]

pytestmark = agents_database


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
