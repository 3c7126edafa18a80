"""The delay of a pass without progress (alarm-host, section 9; scenarios G)."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maintenance import checks, rearm
from maintenance.conf import MaintenanceSettings
from maintenance.decision import Decision, Seen, decide
from maintenance.ports import Residue
from maintenance.testing import fixed_jitter

if TYPE_CHECKING:
    from pytest_django import Settings

MS = timedelta(milliseconds=1)
NOW = datetime(2026, 12, 1, tzinfo=UTC)
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


def seen(**facts: Any) -> Seen:
    """What finish knows of a pass that left autonomous work, with `facts` on top."""
    known: dict[str, Any] = {
        "now": NOW,
        "slot": NOW + 50 * MS,
        "dirty": 5,
        "processed": 4,
        "generation": 5,
        "raced": False,
        "residue": Residue(nonterminal=1, autonomous=True),
        "settled": False,
        "repaired": False,
        "stalls": 0,
        "pending": None,
    }
    return Seen(**(known | facts))


@pytest.mark.parametrize("u", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("stalls", [0, 4, 40])
def test_g01_after_progress_the_wait_is_exactly_one_base_and_the_stalls_are_forgotten(u: float, stalls: int) -> None:
    with fixed_jitter(u):
        decided = decide(seen(repaired=True, stalls=stalls), MaintenanceSettings())
    assert decided == Decision(processed=4, slot=NOW + BASE, stalls=0)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("given", "check"),
    [({"ALARM_BACKOFF_BASE_MS": 5_001}, "E010"), ({"ALARM_BACKOFF_BASE_MS": 2_002}, "E011")],
    ids=["base-above-cap", "least-delay-above-scan"],
)
def test_g11_delays_that_contradict_each_other_stop_the_start(
    settings: Settings, given: dict[str, int], check: str
) -> None:
    settings.MAINTENANCE = given
    with pytest.raises(SystemExit, match=rf"wakeful_maintenance\.{check}"):
        checks.refuse_errors()


def test_o2_five_hundred_that_were_turned_away_together_are_never_early_and_come_back_spread_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rearm, "jitter", Random(7).random)
    asked = timedelta(seconds=600)
    waits = sorted(rearm.at_least(asked) for _ in range(500))
    in_each_second = Counter(int(wait.total_seconds()) for wait in waits)

    assert waits[0] >= asked
    assert waits[-1] - waits[0] >= asked / 10
    assert max(in_each_second.values()) < 25, "less than a twentieth of them in one second"
