"""When a thread looks again: delays, backoff, clamps. Pure functions over `timedelta`s.

Rules: alarm-host specification, sections 9 and 15.8, as amended by the design (3.6, step 6).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta

MAX_EXPONENT = 30

Jitter = Callable[[], float]
"""Uniform in [0, 1)."""

jitter: Jitter = random.random
"""The random source of this process; tests replace it."""


def half_to_full(delay: timedelta) -> timedelta:
    """`delay` jittered over [half, full], so that threads that failed together do not come back together."""
    return delay / 2 + delay / 2 * jitter()


def at_least(delay: timedelta) -> timedelta:
    """`delay` and up to a fifth more: nobody is early, and those who were turned away together come back apart."""
    return delay + delay / 5 * jitter()


def exponential(base: timedelta, cap: timedelta, exponent: int) -> timedelta:
    """`base · 2^exponent`, at most `cap`."""
    factor: int = 2 ** min(max(exponent, 0), MAX_EXPONENT)
    return min(cap, base * factor)


def stalled_delay(stalls: int, *, base: timedelta, cap: timedelta, scan: timedelta) -> timedelta:
    """The wait after a pass without progress; `stalls` counts such passes before this one."""
    return min(half_to_full(exponential(base, cap, stalls)), scan)


def failure_delay(failures: int, *, base: timedelta, cap: timedelta) -> timedelta:
    """The wait after the `failures`-th failed pass in a row (1 for the first)."""
    return half_to_full(exponential(base, cap, failures - 1))


def death_delay(starts: int, *, base: timedelta, cap: timedelta) -> timedelta:
    """The wait after an owner died; none the first time, because a deploy kills too."""
    return timedelta() if starts <= 1 else exponential(base, cap, starts - 2)


def earliest(*deadlines: datetime | None) -> datetime | None:
    """The earliest of the deadlines that exist."""
    return min((at for at in deadlines if at is not None), default=None)
