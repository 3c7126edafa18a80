"""PostgreSQL closes connections under workers: between passes, inside one, at its end, under its renewal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from tests.process import evidence
from tests.process.board import PAUSE
from tests.process.harness import wait_until
from tests.process.jobs import submit

if TYPE_CHECKING:
    from datetime import datetime

    from tests.process.board import Board
    from tests.process.harness import Processes

pytestmark = [pytest.mark.process, pytest.mark.postgres]

T = "t"


def terminate_backends(query: str = "%") -> int:
    """Ends every other connection to this database whose last statement is like `query`, as a restart does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE %s",
            [query],
        )
        return len(cursor.fetchall())


def test_f7_a_worker_whose_connections_were_closed_between_two_passes_goes_on(
    processes: Processes, board: Board
) -> None:
    """Also the kept one of its pool children: it is looked at before it is used, and no pass fails."""
    processes.worker("one", concurrency=1)
    submit(T)
    evidence.wait_for_rest()
    assert terminate_backends() >= 2, "the timer's and the child's"
    submit(T)

    evidence.wait_for_rest()
    assert evidence.outcomes(T) == ["ran", "ran"]
    assert len({note["pid"] for note in board.notes("done")}) == 1, "the same child"


def test_m08_a_pass_whose_connection_was_closed_in_its_body_is_done_again(processes: Processes, board: Board) -> None:
    processes.worker("one")
    board.order("body", PAUSE)
    submit(T)
    wait_until(lambda: board.hits("body"), "the body")
    assert terminate_backends()
    board.open("body")

    evidence.wait_for_rest()
    assert evidence.outcomes(T) == ["failed", "ran"]


def test_m08_a_pass_whose_connection_was_closed_before_its_finish_finishes_on_a_new_one(
    processes: Processes, board: Board
) -> None:
    processes.worker("one")
    board.order("maintenance:finish:before", PAUSE)
    submit(T)
    wait_until(lambda: board.hits("maintenance:finish:before"), "the finish")
    assert terminate_backends()
    board.open("maintenance:finish:before")

    evidence.wait_for_rest()
    assert evidence.outcomes(T) == ["ran"]
    assert len(board.notes("body")) == 1


class TestShortLease:
    """So that renewals come often."""

    @pytest.fixture
    def maintenance(self, maintenance: dict[str, Any]) -> dict[str, Any]:
        lease = {"LEASE_TTL_MS": 3_000, "LEASE_RENEWAL_MS": 200, "LEASE_SELF_CANCEL_MS": 2_500}
        return {**maintenance, **lease}

    def test_f7_a_renewal_whose_connection_was_closed_goes_on_on_a_new_one(
        self, processes: Processes, board: Board
    ) -> None:
        processes.worker("one")
        board.order("body", PAUSE)
        submit(T)
        wait_until(lambda: board.hits("body"), "the body")
        self.wait_for_renewal()
        assert terminate_backends('UPDATE%SET "lease_expires_at" =%') == 1
        self.wait_for_renewal()
        board.open("body")

        evidence.wait_for_rest()
        assert evidence.outcomes(T) == ["ran"]

    def wait_for_renewal(self) -> None:
        def expires_at() -> datetime | None:
            return evidence.row_of(T).lease_expires_at

        before = expires_at()
        assert before is not None
        wait_until(lambda: (expires_at() or before) > before, "a renewal")
