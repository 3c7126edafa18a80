"""A connection that is lost at each COMMIT of a task which settles one submission after another in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import OperationalError, connection

from agents import api
from maintenance import tasks
from maintenance.errors import PassFailed
from maintenance.models import PassRun, ThreadMaintenance
from maintenance.testing import travel
from tests.agents_kit import LEASE, agents_database, run, settled, settlements_in_log, sound
from tests.concurrency import elsewhere
from tests.jobs import execute

if TYPE_CHECKING:
    from tests.integration.agents.conftest import Declare

pytestmark = [agents_database, pytest.mark.postgres, pytest.mark.usefixtures("form")]


class Loss:
    """Has the server end this connection at one commit, before it is carried out or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, happens: bool) -> None:
        self.left, self._happens = number, happens
        self._commit = connection._commit  # type: ignore[attr-defined]
        monkeypatch.setattr(connection, "_commit", self)

    def __call__(self) -> None:
        self.left -= 1
        if self.left:
            self._commit()
            return
        if self._happens:
            self._commit()
        backend = connection.connection.info.backend_pid
        elsewhere(lambda: execute("SELECT pg_terminate_backend(%s, 5000)", backend))
        if self._happens:
            raise OperationalError from psycopg.OperationalError("server closed the connection unexpectedly")
        self._commit()


@pytest.mark.parametrize("happens", [True, False])
def test_whichever_commit_is_lost_each_submission_is_settled_once_and_no_lease_is_left_behind(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, happens: bool
) -> None:
    """Nobody else would release it before it expires: its worker is alive. The history has every pass."""
    declare("note", lambda _ctx, given: given)
    number = 0
    while lose_a_commit(number := number + 1, monkeypatch, happens=happens):
        thread_id = f"t{number}"
        assert ThreadMaintenance.objects.get(pk=thread_id).lease_token is None, number
        travel(LEASE)
        run()
        assert settlements_in_log(thread_id) == 3
        assert sound(thread_id)
        epochs = list(PassRun.objects.filter(thread_id=thread_id).order_by("epoch").values_list("epoch", flat=True))
        assert epochs == list(range(1, len(epochs) + 1))
    assert number > 3


def lose_a_commit(number: int, monkeypatch: pytest.MonkeyPatch, *, happens: bool) -> bool:
    """One task over three submissions of a thread of its own that loses this commit; whether it came to that one."""
    thread_id = f"t{number}"
    receipts = [api.submit(thread_id, "note", given) for given in range(3)]
    seq = ThreadMaintenance.objects.get(pk=thread_id).alarm_seq
    with monkeypatch.context() as patch:
        loss = Loss(patch, number, happens=happens)
        outcome = work(thread_id, seq)
    if loss.left > 0:
        assert [settled(receipt).result for receipt in receipts] == [0, 1, 2]
        return False
    assert outcome in {"failed", "ran"}
    connection.close()
    return True


def work(thread_id: str, seq: int) -> Any:
    try:
        return tasks.run_pass(thread_id, seq)
    except PassFailed:
        return "failed"
