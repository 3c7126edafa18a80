"""Who holds a lease: an identity that another process of the same machine can prove dead.

(boot id, PID-namespace inode, pid, start ticks). Host names are for display only: containers on one host share
the boot id, and names are reused. Without a readable `/proc` nothing can be proved and expiry decides.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_DEAD_STATES = {"Z", "X", "x"}
_UNKNOWN = "?"

_cached: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """A parsed owner string."""

    machine: str
    """`boot:namespace`; equal for processes that can see each other's pids."""
    pid: int
    ticks: str


def current() -> str:
    """The identity of this process, computed in it (after a fork the child computes its own)."""
    global _cached  # noqa: PLW0603 - a cache keyed by pid
    pid = os.getpid()
    if _cached is None or _cached[0] != pid:
        _cached = (pid, f"{machine()}:{pid}:{_start_ticks(pid) or _UNKNOWN}")
    return _cached[1]


@cache
def machine() -> str:
    """`boot:namespace` of this process, or `?:?` where `/proc` cannot be read."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return f"{_UNKNOWN}:{_UNKNOWN}"
    return f"{boot}:{namespace}"


def parse(text: str) -> Owner | None:
    """The parts of an owner string; `None` if it is not one."""
    boot, _, rest = text.partition(":")
    namespace, _, rest = rest.partition(":")
    pid, _, ticks = rest.partition(":")
    if not (boot and namespace and ticks and pid.isdecimal()):
        return None
    return Owner(machine=f"{boot}:{namespace}", pid=int(pid), ticks=ticks)


def is_provably_dead(text: str) -> bool:
    """Whether that process cannot be alive: same machine and namespace, and its pid is gone or someone else's."""
    seen = parse(text)
    if seen is None or _UNKNOWN in seen.machine or seen.ticks == _UNKNOWN or seen.machine != machine():
        return False
    try:
        return _start_ticks(seen.pid) != seen.ticks
    except OSError:
        return False


def _start_ticks(pid: int) -> str | None:
    """When a live process started, in clock ticks since boot; `None` if it is gone or a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in _DEAD_STATES else fields[18]
