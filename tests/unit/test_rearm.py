"""The delay of a pass without progress (alarm-host, section 9; scenarios G)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maintenance import rearm
from maintenance.testing import fixed_jitter

MS = timedelta(milliseconds=1)
BASE, CAP, SCAN = 100 * MS, 5_000 * MS, 1_000 * MS


@pytest.mark.parametrize(
    ("stalls", "u", "expected"),
    [
        (0, 0.0, 50),
        (1, 0.0, 100),
        (2, 0.0, 200),
        (3, 0.0, 400),
        (0, 0.5, 75),
        (1, 0.5, 150),
        (2, 0.5, 300),
        (3, 0.5, 600),
        (4, 0.0, 800),
        (4, 0.5, 1000),
        (5, 0.0, 1000),
        (40, 0.0, 1000),
    ],
)
def test_g02_to_g06_the_wait_doubles_is_jittered_and_is_bounded_by_the_scan(
    stalls: int, u: float, expected: int
) -> None:
    with fixed_jitter(u):
        assert rearm.stalled_delay(stalls, base=BASE, cap=CAP, scan=SCAN) == expected * MS


@pytest.mark.parametrize("stalls", [0, 3, 30])
def test_g07_a_cap_equal_to_the_base_keeps_the_wait_between_half_and_full(stalls: int) -> None:
    assert 50 * MS <= rearm.stalled_delay(stalls, base=BASE, cap=BASE, scan=SCAN) <= 100 * MS


@given(
    base=st.integers(1, 10_000),
    extra=st.integers(0, 100_000),
    scan=st.integers(1, 60_000),
    stalls=st.integers(0, 10_000),
    u=st.floats(0, 1, exclude_max=True),
)
def test_g08_the_wait_lies_between_half_and_full_backoff_and_below_the_scan(
    base: int, extra: int, scan: int, stalls: int, u: float
) -> None:
    cap = base + extra
    backoff = rearm.exponential(base * MS, cap * MS, stalls)
    with fixed_jitter(u):
        delay = rearm.stalled_delay(stalls, base=base * MS, cap=cap * MS, scan=scan * MS)
    assert min(backoff / 2, scan * MS) <= delay <= min(backoff, scan * MS)
