"""Puts into a child process what its test ordered: armed failpoints, another transport, another identity.

Only the processes of the nursery call it: no setting that production reads can.
"""

from __future__ import annotations

from maintenance import dispatch, failpoints, owner
from tests.process import transports
from tests.process.board import Board
from tests.process.crash import cast  # noqa: F401 - its agents are known in every process of a test
from tests.process.entry import Entry


def arm(entry: Entry) -> None:
    """Arms the failpoints of this process and changes what the entry says."""
    board = entry.board

    def reached(point: str, thread_id: str) -> None:
        board.reach(point, thread_id)

    failpoints.arm(reached)
    dispatch.BREAKER_SECONDS = entry.breaker_seconds
    if entry.machine:
        owner.machine = lambda: f"{entry.machine}:1"  # type: ignore[assignment]
    if entry.transport:
        dispatch.send = _transport(entry.transport, board)


def _transport(name: str, board: Board) -> transports.Send:
    kind, _, seed = name.partition(":")
    match kind:
        case "recording":
            return transports.recording(board)
        case "without-eta":
            return transports.without_eta(dispatch.send)
        case "lossy":
            return transports.lossy(dispatch.send, int(seed))
    message = f"no transport {kind!r}"
    raise ValueError(message)
