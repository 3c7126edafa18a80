"""Where the processes of the process tests are born: a parent that has imported everything and opened nothing.

Starting Python and importing Celery, Django and the drivers costs ten times what a fork costs, and a crash matrix
starts hundreds of processes. Each command (a JSON line on standard input) is carried out by a fork in a session of
its own: a Celery command line, or one operation. Its end is written to the reply file that the command names, so a
test learns how a process ended that it did not start itself.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import django

Command = dict[str, Any]

WARM = (
    "celery.__main__",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "config.celery",
    "django_celery_beat.schedulers",
    "kombu.transport.filesystem",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "maintenance.sweeper",
    "maintenance.tasks",
    "tests.process.arming",
    "tests.process.operations",
)
"""Imported before the first fork. None of them reads Celery's settings or connects to anything."""


def main() -> None:
    """Serves until the input ends."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    for name in WARM:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # witnesses are not waited for
    for line in sys.stdin:
        if os.fork() == 0:
            _witness(json.loads(line))


def _witness(command: Command) -> None:
    """Forks the process, says its pid, waits for its end and writes it down. Does not return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reply = Path(command["reply"])
    born = os.fork()
    if born == 0:
        _live(command, reply.with_suffix(".value"))
    _write(reply.with_suffix(".pid"), str(born))
    _, status = os.waitpid(born, 0)
    _write(reply, str(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _live(command: Command, value: Path) -> None:
    """Carries the command out and exits with its code, or with 1 after an exception."""
    code = 1
    try:
        _settle(command)
        if "celery" in command:
            code = _celery(command["celery"])
        else:
            code = _operate(command["operation"], command["arguments"], value)
    except BaseException:  # noqa: BLE001 - whatever it was, it is printed and told by the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _settle(command: Command) -> None:
    """Gives the fork its own session, output, settings and orders."""
    from django.conf import settings
    from django.core.signals import setting_changed

    os.setsid()
    output = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(command["environment"])
    for name, setting in command["settings"].items():
        setattr(settings, name, setting)
        setting_changed.send(sender=None, setting=name, value=setting, enter=True)


def _celery(arguments: list[str]) -> int:
    from celery.__main__ import main as celery

    sys.argv = ["celery", *arguments]
    try:
        celery()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _operate(name: str, arguments: dict[str, Any], value: Path) -> int:
    from tests.process import arming, entry, operations

    arming.arm(entry.read())
    result = getattr(operations, name)(**arguments)
    _write(value, json.dumps(result))
    return 0


def _write(path: Path, text: str) -> None:
    """The file appears whole."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    draft.rename(path)


if __name__ == "__main__":
    main()
