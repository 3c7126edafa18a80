"""Where the processes of the matrix are born: a parent that has imported everything and opened nothing.

Each order (a JSON line on standard input) is carried out by a fork that lives a life and, if told so, dies at a
failpoint. The answer (a line on standard output) is how it ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import traceback
from datetime import timedelta
from typing import Any

import django

Order = dict[str, Any]

WARM = ("agents.runtime", "django.db.models.sql.compiler", "tests.process.crash.living")
"""Imported before the first fork; none of them connects to anything."""

PATIENCE_SECONDS = 25
"""A process that lives longer is stuck."""


def main() -> None:
    """Serves until the input ends."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    for name in WARM:
        importlib.import_module(name)
    gc.freeze()  # what every fork shares stays shared
    _hurry_commits()
    for line in sys.stdin:
        born = os.fork()
        if born == 0:
            _live(json.loads(line))
        _, status = os.waitpid(born, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _hurry_commits() -> None:
    """A killed process loses nothing that it committed; only a power cut would, and there is none here."""
    from django.db import connections

    settings = connections["default"].settings_dict
    options = settings["OPTIONS"]
    if settings["ENGINE"].endswith("sqlite3"):
        options["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"
    else:
        options["options"] = f"{options.get('options', '')} -c synchronous_commit=off"


def _live(order: Order) -> None:
    """Carries the order out and exits: 0 if the life was lived to its end. Does not return."""
    code = 1
    try:
        _settle_in(order)
        _play(order)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, it is printed and told by the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _settle_in(order: Order) -> None:
    """Gives the fork its own output and settings."""
    from django.conf import settings
    from django.core.signals import setting_changed

    from maintenance import drain

    signal.alarm(PATIENCE_SECONDS)
    drain.reset()  # shared with every fork
    output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(output, standard)
    for name, changed in order["settings"].items():
        setattr(settings, name, {**getattr(settings, name), **changed})
        setting_changed.send(sender=None, setting=name, value=getattr(settings, name), enter=True)


def _play(order: Order) -> None:
    from maintenance import failpoints
    from maintenance.testing import moved_clock
    from tests.process.crash import effects
    from tests.process.crash.lives import LIVES
    from tests.process.crash.living import World
    from tests.process.crash.variants import VARIANTS

    if order["variant"]:
        VARIANTS[order["variant"]]()
    left = order["nth"]

    def reached(point: str, _: str) -> None:
        nonlocal left
        if point == order["dies_at"]:
            left -= 1
            if left == 0:
                effects.note(order["path"], effects.HIT, point)
                os.kill(os.getpid(), signal.SIGKILL)

    with moved_clock() as clock:
        clock.ahead = timedelta(seconds=order["ahead"])
        failpoints.arm(reached)
        World(LIVES[order["life"]], order["thread"], order["path"], clock).live()


if __name__ == "__main__":
    main()
