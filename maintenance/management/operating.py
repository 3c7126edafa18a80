"""`maintenance pause`, `resume`, `release` and `wake`: row writes with an actor, a reason and an audit row."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maintenance import operations, standstill
from maintenance.errors import WakefulError
from maintenance.management.answers import Answer, Exit, unknown_thread
from maintenance.models import ThreadMaintenance
from maintenance.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One operation and its words."""

    perform: Callable[..., bool]
    help: str
    done: str
    unchanged: str
    unchanged_code: Exit = Exit.OK
    everywhere: Callable[..., int] | None = None
    """The same for all threads at once, if that is offered."""
    help_for_all: str = ""


VERBS = {
    "pause": Verb(
        perform=operations.pause,
        help="hold the passes of threads back; accepted work is kept",
        done="paused",
        unchanged="was paused already; nothing changed",
        everywhere=standstill.pause,
        help_for_all="stop everything: pause every thread that has an alarm and is not held back",
    ),
    "resume": Verb(
        perform=operations.resume,
        help="let the passes of paused threads go on",
        done="resumed",
        unchanged="was not paused; nothing changed",
        everywhere=standstill.resume,
        help_for_all="let go on what `pause --all` holds back, and nothing that was paused by itself",
    ),
    "release": Verb(
        perform=operations.release,
        help="take threads out of quarantine and reset their count of starts",
        done="released from quarantine",
        unchanged="was not in quarantine; nothing changed",
    ),
    "wake": Verb(
        perform=operations.wake,
        help="make the next pass of threads due now",
        done="woken: its next pass is due now",
        unchanged="busy: a pass holds it and will see what is new",
        unchanged_code=Exit.BUSY,
    ),
}


def operate(name: str, threads: Sequence[str], *, actor: str, reason: str) -> Answer:
    """Performs one operation on each thread, each in a transaction of its own; one failure stops no other."""
    answers = [_operate_on(VERBS[name], thread_id, actor, reason) for thread_id in dict.fromkeys(threads)]
    code = next((answer.code for answer in answers if answer.code is not Exit.OK), Exit.OK)
    return Answer(
        code=code,
        lines=[line for answer in answers for line in answer.lines],
        data={"action": name, "actor": actor, "threads": [answer.data for answer in answers]},
    )


def operate_on_all(name: str, *, actor: str, reason: str) -> Answer:
    """Performs one operation on every thread that it is for; may be repeated."""
    verb = VERBS[name]
    changed = 0 if verb.everywhere is None else verb.everywhere(actor=actor, reason=reason)
    return Answer(
        lines=[f"{counted(changed, 'thread', 'threads')} {verb.done}."],
        data={"action": name, "actor": actor, "changed": changed},
    )


def os_user() -> str:
    """Who runs this command; the user id where the system knows no name for it (in a container, say)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown OS user"


def _operate_on(verb: Verb, thread_id: str, actor: str, reason: str) -> Answer:
    if not ThreadMaintenance.objects.filter(pk=thread_id).exists():
        return unknown_thread(thread_id)
    try:
        changed = verb.perform(thread_id, actor=actor, reason=reason)
    except WakefulError as error:
        text = error.message
        return Answer(code=Exit.FAILED, lines=[f"{thread_id}: {text}"], data={"thread": thread_id, "error": text})
    text = verb.done if changed else verb.unchanged
    return Answer(
        code=Exit.OK if changed else verb.unchanged_code,
        lines=[f"{thread_id}: {text}."],
        data={"thread": thread_id, "changed": changed, "text": text},
    )
