"""`manage.py agents`: submit work, show a thread, verify what is stored."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agents import api, registry
from agents.errors import UnknownAgent, UnknownThread, WakefulError
from agents.intake import Intake, Line
from agents.models import Thread
from agents.operations import show


class Command(BaseCommand):
    """Three verbs; each prints lines for people, or JSON with `--json`. Exit code 1 if something was refused."""

    help = "Submits work to durable agents, shows threads, verifies what is stored."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        self._add_submit(verbs.add_parser("submit", help="submit one piece of work for each line of a file"))
        shown = verbs.add_parser("show", help="show a thread: its queue, its log, what it owes")
        shown.add_argument("thread")
        shown.add_argument("--log", type=int, default=20, metavar="N", help="how many of the last records (20)")
        verified = verbs.add_parser("verify", help="check stored threads against the invariants")
        verified.add_argument("threads", nargs="*", metavar="THREAD")
        verified.add_argument("--all", action="store_true", help="every thread")
        verified.add_argument("--settled", action="store_true", help="also demand that nothing is owed")
        for verb in (shown, verified):
            verb.add_argument("--json", action="store_true", dest="as_json")

    def _add_submit(self, verb: argparse.ArgumentParser) -> None:
        verb.add_argument("agent")
        verb.add_argument("--jsonl", required=True, metavar="FILE", help="one JSON object a line; - is standard input")
        verb.add_argument(
            "--thread-field",
            metavar="FIELD",
            help="each line is an input, and this field of it names the thread; without it a line is "
            '{"thread": ..., "input": ..., "key": ...} with an optional key',
        )
        verb.add_argument("--principal", default="", help="on whose behalf; keys are unique for each")
        verb.add_argument(
            "--once",
            action="store_true",
            help="give lines without a key one made from thread and input: the file may be sent again",
        )
        verb.add_argument("--json", action="store_true", dest="as_json")

    def handle(self, *, verb: str, **options: Any) -> None:
        verbs: dict[str, Callable[..., bool]] = {"submit": self._submit, "show": self._show, "verify": self._verify}
        if not verbs[verb](**options):
            sys.exit(1)

    def _submit(self, *, agent: str, jsonl: str, as_json: bool, **options: Any) -> bool:
        try:
            registry.get(agent)
        except UnknownAgent as unknown:
            raise CommandError(_with_names(unknown)) from unknown
        intake = Intake(agent, options["thread_field"], principal=options["principal"], once=options["once"])
        with _opened(jsonl) as file:
            for line in intake.lines(file):
                self._tell_line(line, as_json=as_json)
        summary = {"accepted": intake.accepted, "replayed": intake.replayed, "refused": intake.refused}
        if as_json:
            self.stdout.write(json.dumps(summary))
        else:
            self.stdout.write(", ".join(f"{count} {word}" for word, count in summary.items()))
        return intake.refused == 0

    def _tell_line(self, line: Line, *, as_json: bool) -> None:
        if line.receipt is None:
            self.stderr.write(f"line {line.number}: {line.problem}")
        elif as_json:
            self.stdout.write(json.dumps({"line": line.number, **show.receipt(line.receipt)}))

    def _show(self, *, thread: str, log: int, as_json: bool, **_: Any) -> bool:
        try:
            shown = show.show(thread, last=log)
        except UnknownThread as unknown:
            raise CommandError(unknown.message) from unknown
        if as_json:
            self.stdout.write(json.dumps(shown))
        else:
            self.stdout.writelines(f"{line}\n" for line in show.as_lines(shown))
        return True

    def _verify(self, *, threads: list[str], as_json: bool, settled: bool, **options: Any) -> bool:
        if bool(threads) == options["all"]:
            message = "name the threads to verify, or say --all"
            raise CommandError(message)
        sound = True
        for thread_id in _all_threads() if options["all"] else threads:
            sound = self._verify_one(thread_id, as_json=as_json, settled=settled) and sound
        return sound

    def _verify_one(self, thread_id: str, *, as_json: bool, settled: bool) -> bool:
        try:
            report = api.verify(thread_id, all_settled=settled)
        except UnknownThread as unknown:
            raise CommandError(unknown.message) from unknown
        if as_json:
            self.stdout.write(json.dumps(show.report(report)))
        else:
            counts = f"{report.submissions} submissions, {report.records} records"
            self.stdout.write(f"{'ok    ' if report.ok else 'BROKEN'} {thread_id}: {counts}")
            for check in report.failed:
                self.stdout.write(f"       {check.name}: {check.detail}")
        return report.ok


def _with_names(unknown: WakefulError) -> str:
    known = ", ".join(registry.names()) or "none"
    return f"{unknown.message}. Declared here: {known}"


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdin
        return
    try:
        file = Path(path).open(encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - closed just below
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise CommandError(message) from error
    with file:
        yield file


def _all_threads() -> Iterator[str]:
    """Every thread in the order of ids, in pages, so that memory does not grow with their number."""
    after = ""
    while page := list(Thread.objects.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:1_000]):
        yield from page
        after = page[-1]
