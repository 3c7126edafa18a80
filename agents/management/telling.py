"""`agents show`, `explain`, `verify`, `obligations` and `export`: what is stored and what it means. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from agents import api
from agents.management.answers import Exit, Out
from agents.management.arguments import Options, add_verb, count_of, seconds_of
from agents.models import CallStatus, Thread
from agents.operations import obligations as owed
from agents.operations import show as showing
from agents.operations.explain import Explanation
from agents.operations.obligations import Obligation, Severity
from maintenance.management.operating import os_user
from maintenance.wording import counted, spoken

PAGE = 1_000
"""Threads that `verify --all` looks up at a time."""


def add(verbs: Any) -> None:
    """Declares the verbs."""
    parser = add_verb(verbs, "show", show, "show a thread: its queue, its log, what it owes")
    parser.add_argument("thread", metavar="THREAD")
    parser.add_argument("--log", type=int, default=20, metavar="N", help="how many of the last records (20)")
    parser = add_verb(verbs, "explain", explain, "say why the unsettled submissions of a thread do not move")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("thread", nargs="?", metavar="THREAD")
    which.add_argument("--submission", metavar="ID", help="explain this one instead, settled or not")
    parser = add_verb(verbs, "verify", verify, "check stored threads against the invariants")
    parser.add_argument("threads", nargs="*", metavar="THREAD")
    parser.add_argument("--all", action="store_true", help="every thread")
    parser.add_argument("--settled", action="store_true", help="also demand that nothing is owed")
    parser = add_verb(verbs, "export", export, "print the whole log of a thread as JSON lines")
    parser.add_argument("thread", metavar="THREAD")
    _add_obligations(verbs)


def _add_obligations(verbs: Any) -> None:
    parser = add_verb(verbs, "obligations", obligations, "list what is owed and what it waits for, oldest first")
    parser.add_argument("--aging", type=seconds_of, default=owed.AGING, metavar="SECONDS", help="10 minutes")
    parser.add_argument("--overdue", type=seconds_of, default=owed.OVERDUE, metavar="SECONDS", help="1 hour")
    parser.add_argument("--thread", metavar="THREAD", help="of this thread only")
    parser.add_argument("--at-least", choices=list(Severity), default=Severity.OK, help="leave out what is younger")
    parser.add_argument("--limit", type=count_of, default=owed.PAGE, metavar="N", help=f"of one page ({owed.PAGE})")
    parser.add_argument("--after", metavar="PLACE", help="go on behind this place of an earlier page")
    parser.add_argument("--check", action="store_true", help="exit 1 if something on the page is overdue")


def show(out: Out, options: Options) -> None:
    """One thread."""
    shown = api.show(options["thread"], last=options["log"], actor=os_user())
    out.tell(shown)
    for line in showing.as_lines(shown):
        out.say(line)


def explain(out: Out, options: Options) -> None:
    """A sentence for each submission, and the ids that an answer needs."""
    if options["submission"]:
        found = [api.explain(options["submission"], actor=os_user())]
    else:
        found = api.explain_thread(options["thread"], actor=os_user())
    for each in found:
        out.tell(each)
        for line in _explained(each):
            out.say(line)
    if not found:
        out.say(f"thread {options['thread']} owes nothing")


def _explained(each: Explanation) -> Iterator[str]:
    yield f"#{each.queue_sequence} {each.agent} {each.outcome or each.state} ({each.submission_id})"
    yield f"   {each.sentence}."
    for asked in each.evidence.approvals:
        yield f"   → agents approve {asked.approval_id} --reason …   (or deny)"
    for call in each.evidence.calls:
        if call.status == CallStatus.UNKNOWN and not call.resolved:
            yield f"   → agents resolve {each.submission_id} {call.call} RESOLUTION --reason …"


def verify(out: Out, options: Options) -> None:
    """A line for each thread; what is wrong below it."""
    threads: list[str] = options["threads"]
    if bool(threads) == options["all"]:
        raise CommandError("name the threads to verify, or say --all", returncode=Exit.USAGE)
    for thread_id in _all_threads() if options["all"] else threads:
        with out.each(thread_id):
            _verify_one(out, thread_id, settled=options["settled"])


def _verify_one(out: Out, thread_id: str, *, settled: bool) -> None:
    report = api.verify(thread_id, all_settled=settled, actor=os_user())
    out.tell(showing.report(report))
    counts = f"{report.submissions} submissions, {report.records} records"
    out.say(f"{'ok    ' if report.ok else 'BROKEN'} {thread_id}: {counts}")
    for check in report.failed:
        out.say(f"       {check.name}: {check.detail}")
    if not report.ok:
        out.fail(Exit.FAILED)


def export(out: Out, options: Options) -> None:
    """The log, line by line."""
    for line in api.export(options["thread"], actor=os_user()):
        out.raw(line)


def obligations(out: Out, options: Options) -> None:
    """One page of what is owed."""
    page = api.obligations(
        aging=options["aging"],
        overdue=options["overdue"],
        thread_id=options["thread"],
        at_least=options["at_least"],
        after=options["after"],
        limit=options["limit"],
        actor=os_user(),
    )
    out.tell(page)
    for each in page.entries:
        out.say(_owed(each, page.now - each.since))
    counts = {level: sum(each.severity is level for each in page.entries) for level in Severity}
    said = ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "none"
    out.say(f"{counted(len(page.entries), 'submission is', 'submissions are')} owed: {said}.")
    if page.next:
        out.say(f"There are more: agents obligations --after '{page.next}'")
    if options["check"] and counts[Severity.OVERDUE]:
        out.fail(Exit.FAILED)


def _owed(each: Obligation, age: Any) -> str:
    on = f" {each.waits_on!r}" if each.waits_on else ""
    what = f"{each.thread_id} #{each.queue_sequence} {each.agent}"
    return f"{each.severity:<8}{spoken(age):>12}  {each.blocked_on}{on}  {what}  ({each.submission_id})"


def _all_threads() -> Iterator[str]:
    """Every thread in the order of ids, in pages, so that memory does not grow with their number."""
    after = ""
    while page := list(Thread.objects.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:PAGE]):
        yield from page
        after = page[-1]
