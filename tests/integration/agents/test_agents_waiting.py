"""Reading what came of a submission, and waiting for it, sync and async."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from agents import api, waiting
from agents.errors import NotSettledInTime, UnknownSubmission
from maintenance.errors import MutationRefused
from tests.agents_kit import agents_database, run
from tests.concurrency import running

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from pytest_django import Settings

pytestmark = agents_database


@pytest.fixture(autouse=True)
def _no_async_connection_left() -> Iterator[None]:
    """The thread for synchronous code keeps a connection, which would outlive the test's database."""
    yield
    run_async(sync_to_async(connections.close_all)())


def test_a_submission_that_is_owed_has_no_settlement_yet(echo: str) -> None:
    assert api.settlement(api.submit("t", echo, 1)) is None


def test_receipt_settlement_id_and_text_name_the_same_submission(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    found = api.settlement(receipt)
    assert found is not None
    names = (receipt, found, receipt.submission_id, str(receipt.submission_id))
    assert [api.settlement(name) for name in names] == [found] * 4


@pytest.mark.parametrize("name", [uuid.UUID(int=7), str(uuid.UUID(int=7)), "nonsense", ""])
def test_13_an_unknown_submission_is_a_typed_error(name: Any) -> None:
    with pytest.raises(UnknownSubmission):
        api.settlement(name)
    with pytest.raises(UnknownSubmission):
        api.wait_for_settlement(name, timeout=1)


def test_a_settlement_that_is_there_is_returned_without_waiting(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = api.submit("t", echo, {"n": 1})
    run()
    monkeypatch.setattr("agents.waiting.time.sleep", lambda _: pytest.fail("slept"))
    assert api.wait_for_settlement(receipt).result == {"n": 1}


def test_a_waiter_sees_the_settlement_that_comes_while_it_waits(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = api.submit("t", echo, {"n": 1})
    monkeypatch.setattr("agents.waiting.time.sleep", lambda _: run())
    assert api.wait_for_settlement(receipt, timeout=10).outcome == "completed"


@pytest.mark.parametrize("timeout", [0, 0.02, timedelta(milliseconds=20)])
def test_a_wait_ends_with_a_typed_error_and_the_work_stays_owed(echo: str, timeout: Any) -> None:
    receipt = api.submit("t", echo, 1)
    with pytest.raises(NotSettledInTime, match="still owed"):
        api.wait_for_settlement(receipt, timeout=timeout)
    run()
    assert api.settlement(receipt) is not None


def test_a_waiter_looks_at_growing_intervals_up_to_the_setting(settings: Settings) -> None:
    settings.AGENTS = {"SETTLEMENT_POLL_MS": 30}
    pauses = waiting._pauses(None)
    assert [round(next(pauses), 3) for _ in range(5)] == [0.005, 0.01, 0.02, 0.03, 0.03]


def test_waiting_inside_a_transaction_is_refused(echo: str) -> None:
    """The work is only sent when that transaction commits, so the wait would be for itself."""
    with transaction.atomic():
        receipt = api.submit("t", echo, 1)
        with pytest.raises(MutationRefused, match="outside transaction"):
            api.wait_for_settlement(receipt, timeout=1)


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_every_verb_has_an_async_twin(echo: str) -> None:
    async def story() -> tuple[Any, ...]:
        receipt = await api.asubmit("t", echo, {"n": 1}, idempotency_key="k")
        before = await api.asettlement(receipt)
        await sync_to_async(run)()
        settled = await api.await_for_settlement(receipt, timeout=10)
        records = await api.aprogress("t", after=1)
        report = await api.averify("t", all_settled=True)
        return before, settled.result, [record.family for record in records], report.ok

    assert run_async(story()) == (None, {"n": 1}, ["user-input", "submission-settled"], True)


def test_an_async_waiter_does_not_hold_its_loop(echo: str) -> None:
    receipt = api.submit("t", echo, {"n": 1})

    async def story() -> str:
        waiter = asyncio.ensure_future(api.await_for_settlement(receipt, timeout=10))
        await sync_to_async(run)()
        return str((await waiter).outcome)

    assert run_async(story()) == "completed"


def test_an_async_wait_ends_with_a_typed_error(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    with pytest.raises(NotSettledInTime):
        run_async(api.await_for_settlement(receipt, timeout=0.01))


def test_progress_grows_while_the_work_goes_on(echo: str) -> None:
    api.submit("t", echo, 1)
    assert [record.sequence for record in api.progress("t")] == [1]
    with running(run) as passes:
        passes.result(timeout=10)
    assert [record.sequence for record in api.progress("t", after=1)] == [2, 3]
