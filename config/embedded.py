"""What the embedded shape (one machine, nothing to install) keeps under `var/`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

from django.core.management.utils import get_random_secret_key


def local_secret(path: Path, make: Callable[[], str] = get_random_secret_key) -> str:
    """Return the secret kept in `path`; the first caller makes it, readable by its owner alone.

    Web, workers and beat start together: the file appears whole by a link, which only one of them
    can make, and all of them read that one.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = mkstemp(dir=path.parent)  # readable by its owner alone
        draft = Path(name)
        os.close(descriptor)
        draft.write_text(make())
        with suppress(FileExistsError):
            path.hardlink_to(draft)
        draft.unlink()
    return path.read_text()


def broker_folders(folder: Path) -> dict[str, object]:
    """Make the folders of the filesystem broker; return its transport options."""
    queue, taken, control = (folder / name for name in ("queue", "taken", "control"))
    for each in (queue, taken, control):
        each.mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": str(queue),
        "data_folder_out": str(queue),
        "processed_folder": str(taken),
        "control_folder": str(control),
        # The default of one second is paid once for every message of a burst.
        "polling_interval": 0.1,
    }
