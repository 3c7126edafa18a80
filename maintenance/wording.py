"""Durations and counts in words, the same in commands, findings and the admin."""

from __future__ import annotations

from datetime import timedelta


def spoken(delta: timedelta) -> str:
    """A duration in its two largest units, without its sign: `4 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    seconds = int(abs(delta).total_seconds())
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((index for index, (value, _) in enumerate(parts) if value), len(parts) - 1)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2] if value) or "0 s"


def spoken_precisely(delta: timedelta) -> str:
    """As `spoken`, but finer below a minute, where whole seconds would say little: `37 ms`, `1.4 s`."""
    seconds = abs(delta).total_seconds()
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else spoken(delta)


def counted(number: int, one: str, many: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number:,} {one if number == 1 else many}"
