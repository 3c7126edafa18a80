"""`manage.py agents`: explain, decide, resolve, abort, retry, tell, list, export; exit codes and JSON."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError
from django.db import OperationalError

from agents import api
from agents.models import AbortIntent, Approval, Event, Submission, ToolCall, UnknownResolution
from maintenance import clock
from maintenance.models import OperatorAction
from tests.agents_kit import run, settled
from tests.commands import Ran, agents

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.integration.agents.conftest import Declare

pytestmark = pytest.mark.django_db
"""Rolled back, not emptied: nothing here needs a second connection."""

NOBODY = "0190b6f0-0000-7000-8000-000000000000"
WHY = ("--reason", "the customer called")


class Deny:
    """An authorizer that allows nothing."""

    def allows(self, _: api.Asked) -> bool:
        return False


@pytest.fixture
def asking(declare: Declare) -> api.Receipt:
    """A submission that waits for an approval."""
    declare("asker", lambda ctx, _: ctx.approval("refund", "refund", {"amount": 5}).decision)
    receipt = api.submit("t", "asker", None)
    run()
    return receipt


@pytest.fixture
def unknown(declare: Declare) -> api.Receipt:
    """A submission of which a call is unknown."""

    def pay() -> None:
        raise api.OutcomeUnknown("no answer came")

    declare("payer", lambda ctx, _: ctx.call_tool(pay, name="pay"))
    receipt = api.submit("t", "payer", None)
    run()
    return receipt


def actions() -> list[tuple[str, str, str]]:
    return list(OperatorAction.objects.order_by("id").values_list("action", "actor", "reason"))


def only(ran: Ran) -> Any:
    """The one JSON object of a run."""
    (line,) = ran.out.splitlines()
    return json.loads(line)


# --- Explain ------------------------------------------------------------------------------------


def test_explain_says_a_sentence_and_the_words_that_answer_it(asking: api.Receipt) -> None:
    ran = agents("explain", "t")
    approval = Approval.objects.get()
    assert ran.code == 0
    first, second, third = ran.out.splitlines()
    assert first == f"#1 asker suspended ({asking.submission_id})"
    assert second.startswith("   Waits for approval of refund(amount: number), asked 0 s ago by agent 'asker'")
    assert f"agents approve {approval.pk} --reason" in third


def test_explain_of_an_unknown_call_says_how_to_resolve_it(unknown: api.Receipt) -> None:
    assert f"agents resolve {unknown.submission_id} pay RESOLUTION --reason" in agents("explain", "t").out


def test_explain_of_a_thread_that_owes_nothing_says_so(echo: str) -> None:
    api.submit("t", echo, 1)
    run()
    assert agents("explain", "t").out == "thread t owes nothing\n"
    assert agents("explain", "t", as_json=True).out == ""


def test_explain_of_one_submission_tells_the_settled_too(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    assert "Settled as completed" in agents("explain", "--submission", receipt.submission_id).out


def test_explain_as_json_carries_the_evidence(asking: api.Receipt) -> None:
    told = only(agents("explain", "t", as_json=True))
    assert told["submission_id"] == str(asking.submission_id)
    assert (told["decision"], told["disposition"], told["waits_for"]) == ("await-answer", "deferred", "approval")
    assert [asked["arguments"] for asked in told["evidence"]["approvals"]] == ["amount: number"]
    assert told["sentence"] == api.explain(asking).sentence


# --- Decide -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "decision"), [("approve", "approved"), ("deny", "denied")])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_decision_is_made_by_id_or_by_submission_and_name(
    asking: api.Receipt, verb: str, decision: str, by_name: bool
) -> None:
    named = (asking.submission_id, "--name", "refund") if by_name else (Approval.objects.get().pk,)
    ran = agents(verb, *named, *WHY, "--actor", "ann")
    assert (ran.code, ran.err) == (0, "")
    run()
    assert settled(asking).result == decision
    assert actions() == [("resolve_approval", "ann", "the customer called")]


def test_a_decision_as_json_says_what_stands(asking: api.Receipt) -> None:
    agents("approve", Approval.objects.get().pk, *WHY, "--actor", "ann")
    told = only(agents("approve", Approval.objects.get().pk, "--reason", "again", as_json=True))
    assert (told["decision"], told["resolver"], told["reason"]) == ("approved", "ann", "the customer called")


def test_another_decision_is_refused_with_the_one_that_stands(asking: api.Receipt) -> None:
    approval = Approval.objects.get().pk
    agents("approve", approval, *WHY, "--actor", "ann")
    ran = agents("deny", approval, *WHY)
    assert (ran.code, ran.out) == (3, "")
    assert "ann has decided: approved" in ran.err


def test_a_decision_about_something_else_than_was_shown_is_refused(asking: api.Receipt) -> None:
    assert agents("approve", Approval.objects.get().pk, "--digest", "f" * 64, *WHY).code == 3
    assert Approval.objects.get().decision == ""


@pytest.mark.parametrize(
    ("resolution", "result", "outcome"),
    [
        ("completed-with-result", '{"paid": true}', "completed"),
        ("failed-with-error", '"the card was refused"', "failed"),
        ("abort", None, "aborted"),
    ],
)
def test_an_unknown_call_is_resolved(unknown: api.Receipt, resolution: str, result: str | None, outcome: str) -> None:
    given = () if result is None else ("--result", result)
    ran = agents("resolve", unknown.submission_id, "pay", resolution, *given, "--try", "1", *WHY)
    assert (ran.code, ran.err) == (0, "")
    run()
    assert settled(unknown).outcome == outcome
    assert UnknownResolution.objects.get().author == getpass.getuser()


def test_a_resolution_shows_no_result_again(unknown: api.Receipt) -> None:
    given = ("resolve", unknown.submission_id, "pay", "completed-with-result", "--result", '"hunter2"', *WHY)
    assert "hunter2" not in agents(*given).out
    assert "hunter2" not in agents(*given, as_json=True).out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("resolve", NOBODY, "pay", "never-started"), 2),
        (("resolve", "{unknown}", "other", "never-started"), 3),
        (("resolve", "{unknown}", "pay", "never-started", "--try", "2"), 3),
        (("resolve", "{unknown}", "pay", "never-started", "--result", "1"), 64),
        (("resolve", "{unknown}", "pay", "failed-with-error"), 64),
    ],
)
def test_a_resolution_that_does_not_fit_is_refused(unknown: api.Receipt, arguments: tuple[str, ...], code: int) -> None:
    ran = agents(*(each.format(unknown=unknown.submission_id) for each in arguments), *WHY)
    assert ran.code == code
    assert ran.err
    assert ToolCall.objects.get().status == "unknown"


# --- Abort and retry ----------------------------------------------------------------------------


def test_abort_ends_each_submission_by_itself_and_one_failure_stops_no_other(asking: api.Receipt, echo: str) -> None:
    other = api.submit("u", echo, 1)
    done = api.submit("v", echo, 1)
    run_only("v")
    ran = agents("abort", asking.submission_id, NOBODY, done.submission_id, other.submission_id, *WHY)
    assert ran.code == 2, "the first thing that went wrong"
    assert f"{NOBODY}: there is no submission" in ran.err
    assert f"{done.submission_id}: the submission is settled: completed" in ran.err
    assert set(AbortIntent.objects.values_list("pk", flat=True)) == {asking.submission_id, other.submission_id}


def run_only(thread_id: str) -> None:
    from maintenance.testing import deliver

    deliver(thread_id)


def test_abort_as_json_gives_a_line_for_each_and_errors_with_their_kind(asking: api.Receipt) -> None:
    first, second = agents("abort", asking.submission_id, NOBODY, *WHY, as_json=True).out.splitlines()
    assert json.loads(first)["submission_id"] == str(asking.submission_id)
    error = json.loads(second)
    assert (error["exit_code"], error["kind"], error["subject"]) == (2, "UnknownSubmission", NOBODY)
    assert "agents show THREAD" in error["error"]


def test_a_repeated_abort_says_who_was_first(asking: api.Receipt) -> None:
    agents("abort", asking.submission_id, *WHY, "--actor", "ann")
    assert "had been asked for by ann" in agents("abort", asking.submission_id, *WHY, "--actor", "bob").out


def test_retry_says_how_it_stands_and_wakes(declare: Declare) -> None:
    declare("waiter", lambda ctx, _: ctx.wait_event("paid"))
    receipt = api.submit("t", "waiter", None)
    run()
    ran = agents("retry", receipt.submission_id, *WHY, "--actor", "ann")
    assert ran.code == 0
    assert "the next pass is due now. Waits for event 'paid'" in ran.out
    assert actions() == [("retry", "ann", "the customer called")]
    assert len(run()) == 1


def test_a_refused_retry_says_what_to_do_instead(asking: api.Receipt) -> None:
    ran = agents("retry", asking.submission_id, *WHY)
    assert ran.code == 3
    assert "await-approval-decision" in ran.err
    assert "approve or deny" in ran.err


# --- Events -------------------------------------------------------------------------------------


def test_an_event_is_told_once_under_its_key(declare: Declare) -> None:
    declare("waiter", lambda ctx, _: ctx.wait_event("paid"))
    receipt = api.submit("t", "waiter", None)
    run()
    given = ("send-event", "t", "paid", "--payload", '{"amount": 5}', "--key", "k", *WHY)
    assert "event 'paid' told" in agents(*given).out
    assert only(agents(*given, as_json=True)) == {"thread": "t", "event": "paid", "key": "k", "new": False}
    run()
    assert settled(receipt).result == {"amount": 5}
    assert Event.objects.count() == 1
    assert [action for action, *_ in actions()] == ["send_event"]


def test_an_event_whose_key_stands_for_something_else_is_refused(echo: str) -> None:
    api.submit("t", echo, 1)
    assert agents("send-event", "t", "paid", "--key", "k", *WHY).code == 0
    assert agents("send-event", "t", "paid", "--payload", "1", "--key", "k", *WHY).code == 3


def test_what_is_not_json_is_told_with_how_to_write_it(echo: str) -> None:
    with pytest.raises(CommandError, match="is not JSON"):
        agents("send-event", "t", "paid", "--payload", "{amount: 5}", *WHY)


# --- Obligations --------------------------------------------------------------------------------


def test_obligations_list_what_is_owed_with_whom_it_waits_for(asking: api.Receipt, echo: str) -> None:
    api.submit("t", echo, 1)
    ran = agents("obligations")
    assert ran.code == 0
    first, second, last = ran.out.splitlines()
    assert first.split()[0] == "ok"
    assert f"approval 'refund'  t #1 asker  ({asking.submission_id})" in first
    assert "ready-aged  t #2 echo" in second
    assert last == "2 submissions are owed: 2 ok."


def test_obligations_page_by_page(echo: str) -> None:
    for number in range(3):
        api.submit(f"t{number}", echo, 1)
    page = only(agents("obligations", "--limit", "2", as_json=True))
    assert len(page["entries"]) == 2
    rest = only(agents("obligations", "--limit", "2", "--after", page["next"], as_json=True))
    assert (len(rest["entries"]), rest["next"]) == (1, None)
    assert f"agents obligations --after '{page['next']}'" in agents("obligations", "--limit", "2").out


def test_a_script_can_ask_whether_anything_is_overdue(echo: str) -> None:
    api.submit("t", echo, 1)
    assert agents("obligations", "--check").code == 0
    Submission.objects.update(created_at=clock.now() - timedelta(hours=2))
    assert agents("obligations", "--check").code == 1
    assert agents("obligations").code == 0
    assert agents("obligations", "--check", "--overdue", "7500").code == 0
    assert len(only(agents("obligations", "--at-least", "overdue", as_json=True))["entries"]) == 1


@pytest.mark.parametrize("wrong", [("--aging", "9", "--overdue", "8"), ("--after", "x"), ("--limit", "5000")])
def test_thresholds_and_places_that_make_no_sense_are_refused(wrong: tuple[str, ...]) -> None:
    assert agents("obligations", *wrong).code == 64


# --- Export -------------------------------------------------------------------------------------


def test_export_prints_the_lines_of_the_log(echo: str) -> None:
    api.submit("t", echo, 1)
    run()
    ran = agents("export", "t")
    assert ran.code == 0
    assert [json.loads(line)["kind"] for line in ran.out.splitlines()] == [
        "header",
        *["batch", "record"] * 3,
        "end",
    ]
    assert ran.out.splitlines()[1:] == list(api.export("t"))[1:]


# --- All of them --------------------------------------------------------------------------------

Call = Callable[[], tuple[Any, ...]]

UNKNOWN: dict[str, Call] = {
    "show": lambda: ("show", "nowhere"),
    "explain": lambda: ("explain", "nowhere"),
    "explain --submission": lambda: ("explain", "--submission", NOBODY),
    "verify": lambda: ("verify", "nowhere"),
    "export": lambda: ("export", "nowhere"),
    "retry": lambda: ("retry", NOBODY, *WHY),
    "abort": lambda: ("abort", NOBODY, *WHY),
    "approve": lambda: ("approve", NOBODY, *WHY),
    "deny": lambda: ("deny", NOBODY, *WHY),
    "approve --name": lambda: ("approve", NOBODY, "--name", "n", *WHY),
    "resolve": lambda: ("resolve", NOBODY, "c", "abort", *WHY),
    "send-event": lambda: ("send-event", "nowhere", "e", *WHY),
}
CHANGING = ("retry", "abort", "approve", "deny", "resolve", "send-event")


@pytest.mark.parametrize("verb", UNKNOWN)
def test_what_is_not_there_exits_with_2_and_says_where_to_look(verb: str) -> None:
    ran = agents(*UNKNOWN[verb]())
    assert (ran.code, ran.out) == (2, "")
    assert "there is no" in ran.err or "has not asked" in ran.err
    assert "agents " in ran.err, "what to do"


@pytest.mark.parametrize("verb", UNKNOWN)
def test_what_is_not_there_is_told_as_json_too(verb: str) -> None:
    told = only(agents(*UNKNOWN[verb](), as_json=True))
    assert told["exit_code"] == 2
    assert told["kind"].startswith("Unknown")
    assert told["error"]


@pytest.mark.parametrize("verb", [*UNKNOWN, "obligations"])
def test_a_denial_exits_with_4_and_names_the_operation(verb: str, settings: Settings) -> None:
    settings.AGENTS = {"AUTHORIZER": f"{__name__}.Deny"}
    ran = agents(*(UNKNOWN[verb]() if verb in UNKNOWN else (verb,)))
    assert (ran.code, ran.out) == (4, "")
    assert " is denied: " in ran.err


@pytest.mark.parametrize("verb", CHANGING)
def test_a_reason_is_mandatory(verb: str) -> None:
    words = [word for word in UNKNOWN[verb]() if word not in WHY]
    with pytest.raises(CommandError, match="--reason"):
        agents(*words)
    with pytest.raises(CommandError, match="must not be empty"):
        agents(*words, "--reason", "  ")


def test_a_database_that_is_down_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any, **__: Any) -> None:
        raise OperationalError("the password is hunter2")

    monkeypatch.setattr("agents.operations.explain.gather", down)
    ran = agents("explain", "t")
    assert ran.code == 1
    assert "maintenance doctor" in ran.err
    assert "hunter2" not in ran.err


def test_an_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agents.operations.explain.gather", interrupted)
    assert agents("explain", "t").code == 130


def test_the_help_of_every_verb_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    from django.core.management import load_command_class

    parser = load_command_class("agents", "agents").create_parser("manage.py", "agents")
    assert "Exit codes: 0 done" in " ".join(parser.format_help().split())
    for verb in ("explain", "resolve", "obligations", "submit"):
        with pytest.raises(SystemExit):
            parser.parse_args([verb, "--help"])
        assert "Exit codes: 0 done" in " ".join(capsys.readouterr().out.split())


def test_who_acted_is_the_user_of_this_machine_unless_told(asking: api.Receipt) -> None:
    agents("abort", asking.submission_id, *WHY)
    assert AbortIntent.objects.get().author == getpass.getuser()
