"""The Celery app of the workers (and beats) that process tests start: the project's own, with failpoints armed."""

from __future__ import annotations

from typing import Any

import django
from celery import signals

from config.celery import app
from maintenance.bootstep import SweepStep

django.setup()  # Celery would do so later, but dispatch and its models are changed right here
from tests.process import arming, entry  # noqa: E402

_entry = entry.read()
arming.arm(_entry)
_board = _entry.board

if not _entry.timer:
    app.steps["worker"].discard(SweepStep)
if str(app.conf.broker_url).startswith("redis"):
    # Abandoned messages are looked for every ten seconds; visibility is scaled down here, and so is this.
    app.conf.broker_transport_options["unacked_restore_interval"] = 0.5


@signals.celeryd_after_setup.connect
def _configure_tasks(**_: Any) -> None:
    for option, value in _entry.task_options.items():
        setattr(app.tasks["maintenance.run_pass"], option, value)


@signals.worker_ready.connect
def _note_ready(sender: Any, **_: Any) -> None:
    _board.note("ready", worker=sender.hostname)


@signals.task_received.connect
def _note_received(request: Any, **_: Any) -> None:
    if request.name == "maintenance.run_pass":
        _board.note("received", thread=request.args[0], seq=request.args[1], worker=request.hostname)


@signals.task_postrun.connect
def _note_answer(task: Any, args: Any, retval: Any, state: str, **_: Any) -> None:
    if task.name == "maintenance.run_pass":
        _board.note("answer", thread=args[0], seq=args[1], outcome=str(retval), state=state)


__all__ = ["app"]
