"""Processes that die on order: at a named place, or after the effect of a scripted tool, without cleaning up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from maintenance import owner, reaper
from maintenance.models import ThreadMaintenance
from maintenance.reaper import Observed
from maintenance.testing import Crash, Failpoints, armed_failpoints


@contextmanager
def crash_at(name: str, *, nth: int = 1) -> Iterator[None]:
    """The block is a process that dies when it comes to the failpoint `name` for the `nth` time.

    What it had committed stays, nothing else does. Its death is found out at once, as by the timer of a worker on the
    same machine, so `run_due_passes()` goes on like another worker. Raises `AssertionError` if the place was not
    reached, `ValueError` for a name that no code hits (`agents.failpoints` and `maintenance.failpoints` list them).
    """
    with armed_failpoints() as points:
        _arm(points, name, nth)
        crashed = False
        try:
            yield
        except Crash:
            crashed = True
        if points.pending or not crashed:
            message = f"{name} was not reached {nth} times; passed by were: {', '.join(points.seen) or 'none'}"
            raise AssertionError(message)
    _find_the_dead()


@contextmanager
def expect_crash() -> Iterator[None]:
    """The block is a process that dies by what a test has put into it, such as `crash_after_effect()`.

    Raises `AssertionError` if it does not.
    """
    try:
        yield
    except Crash:
        _find_the_dead()
    else:
        message = "nothing crashed"
        raise AssertionError(message)


def _arm(points: Failpoints, name: str, times: int) -> None:
    if times <= 1:
        points.crash_at(name)
    else:
        points.arm(name, lambda _: _arm(points, name, times - 1))


def _find_the_dead() -> None:
    """Releases what this process holds: it stands for the one that died."""
    held = ThreadMaintenance.objects.filter(lease_owner=owner.current())
    for thread_id, token in held.values_list("thread_id", "lease_token"):
        if token is not None:
            reaper.release_of_the_dead(Observed(thread_id, token, owner.current()))
