"""Cells of the crash matrix with real Celery workers: what kills a pool child or a whole worker, others go on with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agents import api, failpoints
from agents.models import CallStatus, Submission, ToolCall
from agents.states import State
from maintenance.models import PassRun
from tests.process.board import KILL
from tests.process.crash import effects
from tests.process.crash.lives import LIVES
from tests.process.crash.verdict import judge
from tests.process.harness import wait_until

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.process.board import Board
    from tests.process.harness import Processes

pytestmark = pytest.mark.process

T = "t"


@pytest.fixture
def maintenance(maintenance: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the settings of the other process tests with the ports of agents."""
    ports = {"RUNTIME": "agents.runtime.ThreadRuntime", "LEDGER": "agents.runtime.ThreadLedger"}
    changed = {**maintenance, **ports}
    settings.MAINTENANCE = changed
    return changed


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "effects")


def accept(life: str, path: str) -> None:
    """Submits what the life begins with."""
    from tests.process.crash import cast  # noqa: F401 - declares the agents

    for given in LIVES[life].inputs:
        api.submit(T, LIVES[life].agent, {"path": path, **given})


def all_settled() -> bool:
    return not Submission.objects.exclude(state=State.SETTLED).exists()


@pytest.mark.parametrize(
    ("point", "life"),
    [
        (failpoints.CLAIM_AFTER, "steps"),
        (failpoints.SETTLE_APPENDED, "steps"),
        (failpoints.TOOL_RAN, "reconciled"),
        (failpoints.JOIN_AFTER, "join"),
    ],
)
def test_a_pool_child_killed_in_an_attempt_is_followed_by_another(
    point: str, life: str, processes: Processes, board: Board, path: str
) -> None:
    board.order(point, KILL)
    processes.worker("one", concurrency=1)
    accept(life, path)

    wait_until(all_settled, "the settlements")
    assert [hit["action"] for hit in board.hits(point)] == ["kill"]
    assert judge(LIVES[life], T, path).problems == []


@pytest.mark.parametrize("point", ["maintenance:finish:after", "maintenance:finish:before"])
def test_a_pool_child_killed_between_two_passes_in_place_is_followed_by_another(
    point: str, processes: Processes, board: Board, path: str
) -> None:
    """After the commit that ends the one and begins the other, or before it: both are there, or neither is."""
    board.order(point, KILL)
    accept("steps", path)
    processes.worker("one", concurrency=1)

    wait_until(all_settled, "the settlements")
    assert [hit["action"] for hit in board.hits(point)] == ["kill"]
    lost = 2 if point.endswith("after") else 1
    assert list(PassRun.objects.filter(outcome="worker_lost").values_list("epoch", flat=True)) == [lost]
    assert judge(LIVES["steps"], T, path).problems == []


def test_an_ordinary_call_cut_off_by_the_death_of_its_worker_waits_for_a_person_and_is_not_run_again(
    processes: Processes, board: Board, path: str
) -> None:
    board.order(failpoints.TOOL_RAN, KILL)
    first = processes.worker("one", pool="solo")
    accept("ordinary", path)
    first.exit_code()
    processes.worker("two", pool="solo")
    wait_until(lambda: ToolCall.objects.filter(status=CallStatus.UNKNOWN).exists(), "the call to be unknown")

    call = ToolCall.objects.get()
    api.resolve_unknown(
        call.submission_id, call.call, "completed-with-result", result="charged", actor="bob", reason="he looked"
    )

    wait_until(all_settled, "the settlement")
    assert effects.counts(path) == {"charge": 1}
    assert judge(LIVES["ordinary"], T, path).problems == []
