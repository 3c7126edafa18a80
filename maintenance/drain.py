"""Whether this worker was told to stop. One byte shared by the worker and the pool children that it forks."""

from __future__ import annotations

import mmap

_flag = mmap.mmap(-1, 1)
"""Anonymous and shared: made when the worker imports this module, inherited by every child it forks later."""


def request() -> None:
    """Asks every pass of this worker to stop at its next safe boundary."""
    _flag[0] = 1


def requested() -> bool:
    """Whether the worker drains."""
    return _flag[0] == 1


def reset() -> None:
    """Takes the request back (a worker that starts, a test that ends)."""
    _flag[0] = 0
