"""`agents retry`, `approve`, `deny`, `resolve`, `abort` and `send-event`: each with an author and a reason."""

from __future__ import annotations

from typing import Any

from agents import api
from agents.management.answers import Out
from agents.management.arguments import Options, add_author, add_verb, count_of, json_of
from agents.models import ResolutionKind
from maintenance.management.operating import os_user


def add(verbs: Any) -> None:
    """Declares the verbs."""
    parser = add_verb(verbs, "retry", retry, "have submissions looked at again now; overrides nothing")
    parser.add_argument("submissions", nargs="+", metavar="SUBMISSION")
    add_author(parser)
    parser = add_verb(verbs, "abort", abort, "end submissions, wherever they stand")
    parser.add_argument("submissions", nargs="+", metavar="SUBMISSION")
    add_author(parser)
    for name, run, text in (("approve", approve, "approve what an agent asks"), ("deny", deny, "deny it")):
        parser = add_verb(verbs, name, run, text)
        parser.add_argument("approval", metavar="ID", help="of the approval; with --name, of the submission that asks")
        parser.add_argument("--name", metavar="NAME", help="under which the submission asks")
        parser.add_argument("--digest", metavar="DIGEST", help="of what you were shown; anything else is refused")
        add_author(parser)
    _add_resolve(verbs)
    _add_send_event(verbs)


def _add_resolve(verbs: Any) -> None:
    parser = add_verb(verbs, "resolve", resolve, "say what became of a call of which nobody recorded a result")
    parser.add_argument("submission", metavar="SUBMISSION")
    parser.add_argument("call", metavar="CALL", help="its name, as `agents explain` tells it")
    parser.add_argument(
        "resolution",
        choices=ResolutionKind.values,
        help="; ".join(f"{kind.value}: {kind.label}" for kind in ResolutionKind),
    )
    parser.add_argument(
        "--result", type=json_of, metavar="JSON", help="what the call gave, or the text of its error, as JSON"
    )
    parser.add_argument("--turn", type=int, default=0, metavar="N", help="turn of the call (0)")
    parser.add_argument("--try", type=count_of, dest="tries", metavar="N", help="the try that you looked at")
    add_author(parser)


def _add_send_event(verbs: Any) -> None:
    parser = add_verb(verbs, "send-event", send_event, "tell a thread something that an agent may wait for")
    parser.add_argument("thread", metavar="THREAD")
    parser.add_argument("event", metavar="EVENT")
    parser.add_argument("--payload", type=json_of, metavar="JSON", help="null if not given")
    parser.add_argument("--key", metavar="KEY", help="the same key again tells nothing new")
    add_author(parser)


def retry(out: Out, options: Options) -> None:
    """Each submission by itself; one that cannot be retried stops no other."""
    for submission in options["submissions"]:
        with out.each(submission):
            retried = api.retry(submission, **_author(options))
            out.tell(retried)
            out.say(f"{submission}: the next pass is due now. {retried.sentence}.")


def abort(out: Out, options: Options) -> None:
    """Each submission by itself."""
    for submission in options["submissions"]:
        with out.each(submission):
            accepted = api.abort(submission, **_author(options))
            out.tell({**_plain(accepted, "submission_id", "author", "reason", "requested_at", "replayed")})
            asked = "had been asked for by" if accepted.replayed else "is asked for by"
            out.say(f"{submission}: its end {asked} {accepted.author}; work that completes first stays completed.")


def approve(out: Out, options: Options) -> None:
    """Yes."""
    _decide(out, options, "approved")


def deny(out: Out, options: Options) -> None:
    """No."""
    _decide(out, options, "denied")


def _decide(out: Out, options: Options, decision: str) -> None:
    made = api.resolve_approval(
        options["approval"], decision, name=options["name"], digest=options["digest"], **_author(options)
    )
    out.tell(
        {"approval": options["approval"], "name": options["name"], **_plain(made, "decision", "resolver", "reason")}
    )
    out.say(f"{options['approval']}: {made.decision} by {made.resolver}; the run goes on with the next pass.")


def resolve(out: Out, options: Options) -> None:
    """What became of a call."""
    made = api.resolve_unknown(
        options["submission"],
        options["call"],
        options["resolution"],
        result=options["result"],
        turn=options["turn"],
        tries=options["tries"],
        **_author(options),
    )
    out.tell(_plain(made, "submission_id", "call", "tries", "resolution", "author", "reason", "replayed"))
    said = "had been resolved as" if made.replayed else "is resolved as"
    out.say(f"{options['submission']}: call {made.call!r} {said} {made.resolution} by {made.author}.")


def send_event(out: Out, options: Options) -> None:
    """Tells a thread something."""
    new = api.send_event(
        options["thread"], options["event"], options["payload"], key=options["key"], **_author(options)
    )
    out.tell({"thread": options["thread"], "event": options["event"], "key": options["key"], "new": new})
    said = "told" if new else "had been told before, under this key"
    out.say(f"{options['thread']}: event {options['event']!r} {said}.")


def _author(options: Options) -> dict[str, str]:
    return {"actor": options["actor"] or os_user(), "reason": options["reason"]}


def _plain(made: Any, *names: str) -> dict[str, Any]:
    """What is told of a value, and nothing else: results are no business of a terminal's history."""
    return {name: getattr(made, name) for name in names}
