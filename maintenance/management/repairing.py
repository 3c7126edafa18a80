"""`maintenance ensure`: arms what is owed and has no alarm, and moves every thread on after a failover."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError

from maintenance import ensure, failover
from maintenance.errors import WakefulError, described
from maintenance.hooks import current as hooks
from maintenance.management.answers import Answer, Exit, unknown_thread
from maintenance.models import ThreadMaintenance
from maintenance.wording import counted

PAGE = 1_000


def ensure_one(thread_id: str) -> Answer:
    """Arms one thread if it is dirty or a deadline is pending; makes its row if only the row is missing."""
    known = ThreadMaintenance.objects.filter(pk=thread_id).exists() or hooks().ledger.thread_exists(thread_id)
    if not known:
        return unknown_thread(thread_id)
    ensure.ensure_alarm(thread_id)
    return Answer(lines=[f"{thread_id}: ensured."], data={"ensured": 1, "failed": {}})


def audit() -> Answer:
    """What beat does every minute: arms the threads with a pending deadline or timer and no slot."""
    armed = ensure.audit()
    return Answer(
        lines=[f"Armed {counted(armed, 'thread', 'threads')} that had a deadline and no alarm."],
        data={"ensured": armed, "failed": {}},
    )


def ensure_all() -> Answer:
    """Ensures every thread that has a row; one that fails stops no other."""
    ensured, failed = 0, {}
    for thread_id in _all_threads():
        try:
            ensure.ensure_alarm(thread_id)
            ensured += 1
        except WakefulError as error:
            failed[thread_id] = error.message
    ensured += ensure.audit()
    lines = [f"Ensured {counted(ensured, 'thread', 'threads')}, {len(failed)} failed."]
    lines += [f"{thread_id}: {text}" for thread_id, text in failed.items()]
    return Answer(code=Exit.FAILED if failed else Exit.OK, lines=lines, data={"ensured": ensured, "failed": failed})


def after_failover(*, after: str, actor: str, reason: str) -> Answer:
    """Moves every thread on, batch by batch; tells where to go on if it cannot end."""
    moved, error = failover.Moved(last=after), ""
    try:
        for step in failover.move_on(after=after):
            moved = step
    except KeyboardInterrupt:
        error = "interrupted"
    except (WakefulError, DatabaseError) as failure:
        error = described(failure)
    data = {"moved": moved.count, "last": moved.last, "done": not error, "error": error}
    lines = [f"Moved {counted(moved.count, 'thread', 'threads')} to a new generation and slot sequence."]
    if error:
        lines += [
            f"Stopped: {error}",
            f"Go on with: manage.py maintenance ensure --after-failover --after {moved.last!r}",
        ]
        return Answer(code=Exit.FAILED, lines=lines, data=data)
    failover.record(moved, after=after, actor=actor, reason=reason)
    return Answer(lines=lines, data=data)


def _all_threads() -> Iterator[str]:
    after = ""
    while page := list(
        ThreadMaintenance.objects.filter(pk__gt=after).order_by("pk").values_list("thread_id", flat=True)[:PAGE]
    ):
        yield from page
        after = page[-1]
