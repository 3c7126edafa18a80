"""`manage.py maintenance`: run passes, sweep, look, repair and hold back, from a shell or from cron."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, _SubParsersAction
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, InterfaceError

from maintenance.errors import WakefulError, described
from maintenance.identity import is_thread_id
from maintenance.management import operating, repairing, running, telling
from maintenance.management.answers import Answer, Exit

EPILOG = (
    "Exit codes: 0 ran, 1 failed, 2 unknown thread, 3 busy, 4 paused or in quarantine, 5 not due, 64 wrong arguments."
)

Verb = Callable[[dict[str, Any]], Answer]


class VerbParser(CommandParser):
    """A parser whose usage errors do not look like an unknown thread to a script."""

    def error(self, message: str) -> NoReturn:
        if not self.called_from_command_line:
            super().error(message)
        self.print_usage(_stderr())
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n")


class Command(BaseCommand):
    """One command with a verb: `manage.py maintenance VERB --help`."""

    help = "Operate the maintenance of threads: passes, sweep, status, repair, pause."
    # A broken configuration must not keep an operator from looking at it: `doctor` runs the checks itself.
    requires_system_checks = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, epilog=EPILOG, **kwargs)
        parser.__class__ = VerbParser
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=VerbParser)
        _add_running(verbs)
        _add_telling(verbs)
        _add_repairing(verbs)
        _add_operating(verbs)

    def handle(self, *_: Any, **options: Any) -> None:
        answer = _answer(options)
        if options["as_json"]:
            self.stdout.write(json.dumps(answer.as_json(), cls=DjangoJSONEncoder, ensure_ascii=False, indent=2))
        else:
            # What was found goes to standard output whatever the exit code; only what hindered us is an error.
            out = self.stdout if answer.data else self.stderr
            for line in answer.lines:
                out.write(line)
        if answer.code is not Exit.OK:
            raise SystemExit(int(answer.code))


def _answer(options: dict[str, Any]) -> Answer:
    verb: Verb = options["run"]
    try:
        return verb(options)
    except KeyboardInterrupt:
        text = "Interrupted. A pass that ran has given its thread back; nothing is lost."
        return Answer(code=Exit.INTERRUPTED, lines=[text])
    except WakefulError as error:
        return Answer(code=Exit.FAILED, lines=[f"{error.message}."])
    except (DatabaseError, InterfaceError) as error:
        text = f"{described(error)}. Is the database up and migrated? `manage.py maintenance doctor` looks closer."
        return Answer(code=Exit.FAILED, lines=[text[0].upper() + text[1:]])


def _stderr() -> Any:
    import sys  # noqa: PLC0415 - looked up when it is used: tests replace it

    return sys.stderr


# --- What each verb does ------------------------------------------------------------------------


def _pass(options: dict[str, Any]) -> Answer:
    if options["force"] and options["due"]:
        raise CommandError("--force does not go with --due: what is due needs no force", returncode=Exit.USAGE)
    force = _force(options)
    with running.in_this_process():
        if options["due"]:
            return running.run_due(options["limit"])
        if options["all_dirty"]:
            return running.run_dirty(options["limit"], force=force)
        return running.run_one(options["thread"], force=force)


def _force(options: dict[str, Any]) -> running.Force | None:
    if not options["force"]:
        if options["reason"] or options["actor"]:
            raise CommandError(
                "--reason and --actor go with --force: nothing else is written down", returncode=Exit.USAGE
            )
        return None
    if not options["reason"]:
        raise CommandError("--force needs --reason; it is kept in the audit log", returncode=Exit.USAGE)
    return running.Force(actor=options["actor"] or operating.os_user(), reason=options["reason"])


def _sweep(options: dict[str, Any]) -> Answer:
    if not options["inline"]:
        return running.hand_over()
    with running.in_this_process():
        return running.run_due(options["limit"])


def _status(options: dict[str, Any]) -> Answer:
    threshold = options["overdue"]
    if options["check"]:
        return telling.check(threshold)
    if options["thread"]:
        return telling.tell_one(options["thread"])
    return telling.tell_all(threshold)


def _doctor(_: dict[str, Any]) -> Answer:
    return telling.examine()


def _ensure(options: dict[str, Any]) -> Answer:
    if options["after_failover"]:
        actor = options["actor"] or operating.os_user()
        return repairing.after_failover(after=options["after"], actor=actor, reason=options["reason"])
    if options["all"]:
        return repairing.ensure_all()
    return repairing.ensure_one(options["thread"]) if options["thread"] else repairing.audit()


def _operate(options: dict[str, Any]) -> Answer:
    actor = options["actor"] or operating.os_user()
    if bool(options["threads"]) == options.get("all", False):
        raise CommandError("name the threads, or --all where there is that", returncode=Exit.USAGE)
    if not options["threads"]:
        return operating.operate_on_all(options["verb"], actor=actor, reason=options["reason"])
    return operating.operate(options["verb"], options["threads"], actor=actor, reason=options["reason"])


# --- How each verb is said ----------------------------------------------------------------------

Verbs = _SubParsersAction


def _add(verbs: Any, name: str, run: Verb, text: str) -> ArgumentParser:
    parser: ArgumentParser = verbs.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=EPILOG
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def _add_running(verbs: Any) -> None:
    parser = _add(verbs, "pass", _pass, "run passes in this process, with the lease and limits of any pass")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "thread", nargs="?", type=_thread_id, metavar="THREAD", help="run one pass of this thread, if it is due"
    )
    which.add_argument("--due", action="store_true", help="run what is due, earliest first")
    which.add_argument("--all-dirty", action="store_true", help="run all that is not acknowledged, due or not")
    parser.add_argument(
        "--force", action="store_true", help="override everything but a live lease; needs --reason, as it is kept"
    )
    _add_author(parser, required=False)
    _add_limit(parser)
    parser = _add(verbs, "sweep", _sweep, "hand what is due and near to the broker, as a worker's timer does")
    parser.add_argument("--inline", action="store_true", help="run what is due in this process; needs no Celery")
    _add_limit(parser)


def _add_telling(verbs: Any) -> None:
    parser = _add(verbs, "status", _status, "tell what is owed, running, late and held back, from the database alone")
    parser.add_argument(
        "thread", nargs="?", type=_thread_id, metavar="THREAD", help="tell everything about this thread instead"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if something is overdue")
    parser.add_argument(
        "--overdue",
        type=_seconds,
        metavar="SECONDS",
        help="what is late by more than this is overdue; two sweep intervals if not given",
    )
    _add(verbs, "doctor", _doctor, "look for what is wrong: settings, clocks, database, broker, workers, sweep")


def _add_repairing(verbs: Any) -> None:
    parser = _add(
        verbs, "ensure", _ensure, "arm what is owed and has no alarm (all pending deadlines if none is named)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("thread", nargs="?", type=_thread_id, metavar="THREAD", help="look at this thread only")
    which.add_argument("--all", action="store_true", help="look at every thread that has a row")
    which.add_argument(
        "--after-failover",
        action="store_true",
        help="move every thread to a new generation and slot sequence: commits may have been lost",
    )
    parser.add_argument(
        "--after", default="", metavar="THREAD", help="go on behind this thread (with --after-failover)"
    )
    _add_author(parser, required=False, reason="the database failed over")


def _add_operating(verbs: Any) -> None:
    for name, verb in operating.VERBS.items():
        parser = _add(verbs, name, _operate, verb.help)
        if verb.everywhere is None:
            parser.add_argument("threads", nargs="+", type=_thread_id, metavar="THREAD")
        else:
            parser.add_argument("threads", nargs="*", type=_thread_id, metavar="THREAD")
            parser.add_argument("--all", action="store_true", help=verb.help_for_all)
        _add_author(parser)


def _add_author(parser: ArgumentParser, *, required: bool = True, reason: str | None = None) -> None:
    parser.add_argument("--reason", type=_text, required=required, default=reason, help="why; kept in the audit log")
    parser.add_argument(
        "--actor", type=_text, help="who, for the audit log; your user name on this machine if not given"
    )


def _add_limit(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=_positive, metavar="N", help=f"run at most N passes ({running.DEFAULT_LIMIT} if not given)"
    )


def _thread_id(value: str) -> str:
    if not is_thread_id(value):
        raise ArgumentTypeError(f"{value!r} cannot be the id of a thread")
    return value


def _text(value: str) -> str:
    if not value.strip():
        raise ArgumentTypeError("must not be empty")
    return value.strip()


def _positive(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ArgumentTypeError(f"{value!r} is not a whole number above 0")
    return int(value)


def _seconds(value: str) -> timedelta:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 10**9:
        raise ArgumentTypeError(f"{value!r} is not a number of seconds")
    return timedelta(seconds=seconds)
