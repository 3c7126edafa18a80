"""Named places where a test may pause, raise or kill. Inert unless a test arms them.

Nothing that production reads (no setting, no environment variable) can arm one: `arm` is called only by the
test kit inside a test process, or by an entry module under `tests/` for worker processes.
"""

from __future__ import annotations

from collections.abc import Callable

Handler = Callable[[str, str], None]
"""Called with the failpoint's name and the thread id."""

REFERENCE = (
    "maintenance:dirty:before",
    "maintenance:dirty:after",
    "maintenance:mutation:armed",
    "maintenance:mutation:finished",
    "maintenance:ensure:before",
    "maintenance:ensure:after",
    "maintenance:begin:before",
    "maintenance:begin:after",
    "maintenance:finish:before",
    "maintenance:finish:after",
)
"""The ten of the reference system."""

EXTENSIONS = (
    "commit:after",
    "dispatch:before-publish",
    "dispatch:after-publish",
    "delivery:received",
    "delivery:before-lease",
    "lease:renew:before",
    "lease:renew:after",
    "lease:release:before",
    "reap:proved",
    "sweep:claimed",
    "sweep:published",
)
"""Ours, for the places that the reference's platform hid."""

ALL: list[str] = [*REFERENCE, *EXTENSIONS]
"""Every name; other apps add theirs with `declare`."""

_handler: Handler | None = None


def declare(*names: str) -> None:
    """Adds an app's own failpoints to `ALL`, so that the crash matrix cannot forget one."""
    ALL.extend(name for name in names if name not in ALL)


def arm(handler: Handler | None) -> None:
    """Installs the handler of this process; `None` makes every failpoint inert again."""
    global _handler  # noqa: PLW0603 - one seam per process, on purpose
    _handler = handler


def hit(name: str, thread_id: str = "") -> None:
    """Does nothing in production."""
    if _handler is not None:
        _handler(name, thread_id)
