"""`manage.py agents`: submit work, look at it, say what became of it, from a shell or from a script."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError

from agents.errors import WakefulError
from agents.management import acting, submitting, telling
from agents.management.answers import EPILOG, Exit, Out
from maintenance.management.commands.maintenance import VerbParser


class Command(BaseCommand):
    """One command with a verb: `manage.py agents VERB --help`."""

    help = "Submit work to durable agents, see why it does not move, decide, abort, verify."
    # A broken configuration must not keep an operator from looking and deciding.
    requires_system_checks = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, epilog=EPILOG, **kwargs)
        parser.__class__ = VerbParser
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=VerbParser)
        for group in (submitting, telling, acting):
            group.add(verbs)

    def handle(self, *_: Any, **options: Any) -> None:
        out = Out(self.stdout, self.stderr, as_json=options["as_json"])
        try:
            options["run"](out, options)
        except (WakefulError, DatabaseError, InterfaceError) as error:
            out.refuse(error)
        except KeyboardInterrupt:
            out.warn("Interrupted; what was told before is done.")
            out.fail(Exit.INTERRUPTED)
        if out.code is not Exit.OK:
            raise SystemExit(int(out.code))
