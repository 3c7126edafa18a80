"""Who may do what: the authorizer is asked once, before anything is read or written (alarm-host 18.9, R-08; 253)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Permission
from django.db import DatabaseError

from agents import api, canonical
from agents.models import Approval, Submission, ToolCall
from agents.operations.authorize import MAX_SAID, PERMISSIONS, Asked, Operation, authorize, name_of
from maintenance.errors import MAX_REASON, OperationDenied
from maintenance.models import OperatorAction, ThreadMaintenance
from tests.agents_kit import run
from tests.factories import row_of
from tests.statements import counted_statements

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.integration.agents.conftest import Declare

pytestmark = pytest.mark.django_db
"""Rolled back, not emptied: nothing here needs a second connection."""

SOME_ID = UUID("0190b6f0-0000-7000-8000-000000000000")


class Guard:
    """An authorizer that notes what it was asked and answers as the test says."""

    asked: ClassVar[list[Asked]] = []
    answer: ClassVar[Any] = False

    def allows(self, asked: Asked) -> Any:
        Guard.asked.append(asked)
        if isinstance(Guard.answer, BaseException):
            raise Guard.answer
        return Guard.answer


@pytest.fixture
def guard(settings: Settings) -> Iterator[type[Guard]]:
    """Put the guard at the door; it denies until it is told otherwise."""
    settings.AGENTS = {"AUTHORIZER": f"{__name__}.Guard"}
    Guard.asked, Guard.answer = [], False
    yield Guard
    Guard.asked, Guard.answer = [], False


Ask = Callable[..., Any]

VERBS: dict[str, tuple[Operation, Ask]] = {
    "submit": (Operation.SUBMIT, lambda actor: api.submit("t", "echo", 1, actor=actor)),
    "settlement": (Operation.OBSERVE, lambda actor: api.settlement(SOME_ID, actor=actor)),
    "wait_for_settlement": (Operation.OBSERVE, lambda actor: api.wait_for_settlement(SOME_ID, 0, actor=actor)),
    "await_for_settlement": (
        Operation.OBSERVE,
        lambda actor: asyncio.run(api.await_for_settlement(SOME_ID, 0, actor=actor)),
    ),
    "progress": (Operation.OBSERVE, lambda actor: api.progress("t", actor=actor)),
    "show": (Operation.SHOW, lambda actor: api.show("t", actor=actor)),
    "explain": (Operation.EXPLAIN, lambda actor: api.explain(SOME_ID, actor=actor)),
    "explain_thread": (Operation.EXPLAIN, lambda actor: api.explain_thread("t", actor=actor)),
    "verify": (Operation.VERIFY, lambda actor: api.verify("t", actor=actor)),
    "export": (Operation.EXPORT, lambda actor: api.export("t", actor=actor)),
    "obligations": (Operation.SCAN_OBLIGATIONS, lambda actor: api.obligations(actor=actor)),
    "retry": (Operation.RETRY, lambda actor: api.retry(SOME_ID, actor=actor, reason="r")),
    "wake": (Operation.WAKE, lambda actor: api.wake("t", actor=actor, reason="r")),
    "force_pass": (Operation.FORCE_PASS, lambda actor: api.force_pass("t", actor=actor, reason="r")),
    "abort": (Operation.ABORT, lambda actor: api.abort(SOME_ID, actor=actor, reason="r")),
    "resolve_approval": (
        Operation.RESOLVE_APPROVAL,
        lambda actor: api.resolve_approval(SOME_ID, "approved", actor=actor, reason="r"),
    ),
    "resolve_approval by name": (
        Operation.RESOLVE_APPROVAL,
        lambda actor: api.resolve_approval(SOME_ID, "denied", name="n", actor=actor, reason="r"),
    ),
    "resolve_unknown": (
        Operation.RESOLVE_UNKNOWN,
        lambda actor: api.resolve_unknown(SOME_ID, "c", "never-started", actor=actor, reason="r"),
    ),
    "send_event": (Operation.SEND_EVENT, lambda actor: api.send_event("t", "e", actor=actor)),
}

CHANGING = ("retry", "wake", "force_pass", "abort", "resolve_approval", "resolve_unknown")


@pytest.mark.parametrize("verb", VERBS)
def test_r08_253_a_denied_operation_reads_and_writes_nothing(guard: type[Guard], verb: str) -> None:
    operation, ask = VERBS[verb]
    with counted_statements() as statements, pytest.raises(OperationDenied) as denied:
        ask("somebody")
    assert statements.sql == []
    assert denied.value.operation == operation
    assert [asked.operation for asked in guard.asked] == [operation]


def test_253_every_operation_is_behind_a_verb_of_the_door() -> None:
    assert {operation for operation, _ in VERBS.values()} == set(Operation) == set(PERMISSIONS)


def test_every_asynchronous_verb_has_its_twin_behind_the_same_door() -> None:
    twins = {name for name in api.__all__ if f"a{name}" in api.__all__}
    assert twins == {name.partition(" ")[0] for name in VERBS} - {"await_for_settlement"}


def test_r08_the_maintenance_row_is_unchanged_by_a_denial(guard: type[Guard], echo: str) -> None:
    guard.answer = True
    receipt = api.submit("t", echo, 1)
    before = ThreadMaintenance.objects.values().get()
    guard.answer = False
    for verb in ("abort", "retry"):
        with pytest.raises(OperationDenied):
            getattr(api, verb)(receipt, actor="somebody", reason="r")
    assert ThreadMaintenance.objects.values().get() == before
    assert not OperatorAction.objects.exists()


def test_253_allowed_again_the_operation_answers(guard: type[Guard], echo: str) -> None:
    guard.answer = True
    receipt = api.submit("t", echo, 1)
    run()
    found = api.explain(receipt)
    assert (found.decision, found.disposition) == ("no-action", "none")


def test_the_authorizer_gets_what_the_caller_named(guard: type[Guard]) -> None:
    for verb in VERBS:
        with pytest.raises(OperationDenied):
            VERBS[verb][1]("somebody")
    assert {asked.actor for asked in guard.asked} == {"somebody"}
    named = dict(zip(VERBS, guard.asked, strict=True))
    assert (named["retry"].submission_id, named["retry"].thread_id) == (SOME_ID, None)
    assert (named["verify"].submission_id, named["verify"].thread_id) == (None, "t")
    assert (named["resolve_approval"].approval_id, named["resolve_approval"].submission_id) == (SOME_ID, None)
    by_name = named["resolve_approval by name"]
    assert (by_name.approval_id, by_name.submission_id) == (None, SOME_ID)


@pytest.mark.parametrize("answer", [None, 1, "yes", [True]])
def test_anything_but_true_is_a_denial(guard: type[Guard], answer: Any) -> None:
    """An authorizer that forgets to answer has allowed nothing."""
    guard.answer = answer
    with pytest.raises(OperationDenied, match="verify is denied: the authorizer does not allow it"):
        api.verify("t", actor="somebody")


def test_an_authorizer_that_fails_has_allowed_nothing_and_its_text_is_not_shown(guard: type[Guard]) -> None:
    guard.answer = DatabaseError("the password is hunter2")
    with pytest.raises(OperationDenied, match="the authorizer failed") as denied:
        api.verify("t", actor="somebody")
    assert "hunter2" not in str(denied.value)


def test_an_authorizer_may_give_its_own_reason_and_it_is_bounded(guard: type[Guard]) -> None:
    guard.answer = OperationDenied("x" * 10_000)
    with pytest.raises(OperationDenied) as denied:
        api.verify("t", actor="somebody")
    assert denied.value.operation == "verify"
    assert len(denied.value.reason) == MAX_REASON


def test_an_interruption_is_never_taken_for_a_denial(guard: type[Guard]) -> None:
    guard.answer = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        api.verify("t", actor="somebody")


def test_an_authorizer_that_cannot_be_imported_denies(settings: Settings) -> None:
    settings.AGENTS = {"AUTHORIZER": "nowhere.Guard"}
    with pytest.raises(OperationDenied, match="the authorizer failed"):
        api.verify("t")


# --- The default --------------------------------------------------------------------------------


def user(*permissions: str, **changed: Any) -> Any:
    """A user with exactly these permissions."""
    made = get_user_model().objects.create_user("ann", **changed)
    for permission in permissions:
        label, _, codename = permission.partition(".")
        made.user_permissions.add(Permission.objects.get(content_type__app_label=label, codename=codename))
    return get_user_model().objects.get(pk=made.pk)


def test_trusted_code_and_trusted_tools_may_do_everything() -> None:
    for operation in Operation:
        assert authorize(None, operation) == "system"
        assert authorize("cron", operation) == "cron"


def test_a_name_that_is_none_is_nobody() -> None:
    with pytest.raises(OperationDenied):
        authorize("  ", Operation.VERIFY)


@pytest.mark.parametrize("operation", Operation)
def test_a_user_needs_the_permission_of_the_operation_and_no_other(operation: Operation) -> None:
    permission = PERMISSIONS[operation]
    others = {one for one in PERMISSIONS.values() if one != permission}
    with pytest.raises(OperationDenied, match=f"the permission {permission} is missing"):
        authorize(user(*others), operation)
    get_user_model().objects.all().delete()
    assert authorize(user(permission), operation) == "ann"


def test_a_superuser_may_do_everything_and_an_inactive_one_nothing() -> None:
    assert authorize(user(is_superuser=True), Operation.ABORT) == "ann"
    get_user_model().objects.all().delete()
    with pytest.raises(OperationDenied):
        authorize(user(is_superuser=True, is_active=False), Operation.ABORT)


def test_who_is_not_logged_in_may_do_nothing() -> None:
    for operation in Operation:
        with pytest.raises(OperationDenied, match="nobody is logged in"):
            authorize(AnonymousUser(), operation)


def test_a_user_model_without_permissions_may_do_nothing() -> None:
    class Bare:
        is_authenticated = True

        def get_username(self) -> str:
            return "bare"

    with pytest.raises(OperationDenied):
        authorize(Bare(), Operation.VERIFY)  # type: ignore[arg-type]


def test_a_denied_user_reads_nothing_but_the_permissions() -> None:
    somebody = user()
    with counted_statements() as statements, pytest.raises(OperationDenied):
        api.abort(SOME_ID, actor=somebody, reason="r")
    assert statements.beyond("auth_", "django_content_type") == []
    assert statements.writes() == []


def test_a_long_name_is_cut() -> None:
    assert len(name_of("x" * 1_000)) == 200


# --- What is written down -----------------------------------------------------------------------


@pytest.mark.parametrize("verb", CHANGING)
@pytest.mark.parametrize("reason", ["", "  "])
def test_a_change_needs_a_reason(verb: str, reason: str) -> None:
    given: dict[str, Callable[[], Any]] = {
        "retry": lambda: api.retry(SOME_ID, reason=reason),
        "wake": lambda: api.wake("t", reason=reason),
        "force_pass": lambda: api.force_pass("t", reason=reason),
        "abort": lambda: api.abort(SOME_ID, reason=reason),
        "resolve_approval": lambda: api.resolve_approval(SOME_ID, "approved", reason=reason),
        "resolve_unknown": lambda: api.resolve_unknown(SOME_ID, "c", "abort", reason=reason),
    }
    with counted_statements() as statements, pytest.raises(OperationDenied, match="it needs a reason"):
        given[verb]()
    assert statements.sql == []


def trail() -> list[tuple[str, str, str, str]]:
    """Who did what to which thread, and why."""
    return list(OperatorAction.objects.order_by("id").values_list("action", "thread_id", "actor", "reason"))


@pytest.fixture
def asking(declare: Declare) -> api.Receipt:
    """A submission that waits for an approval."""
    declare("asker", lambda ctx, _: ctx.approval("refund", "refund", {"amount": 5}).decision)
    receipt = api.submit("t", "asker", None)
    run()
    return receipt


def test_an_abort_keeps_who_and_why_once(asking: api.Receipt) -> None:
    api.abort(asking, actor=user("wakeful_agents.abort_submission"), reason="enough")
    assert api.abort(asking, actor="bob", reason="me too").author == "ann"
    assert trail() == [("abort", "t", "ann", "enough")]
    action = OperatorAction.objects.get()
    assert action.before["aborted"] is False
    assert action.after["aborted"] is True
    assert action.before["state"] == "suspended"


def test_a_refused_abort_leaves_no_trace(echo: str) -> None:
    receipt = api.submit("t", echo, 1)
    run()
    before = row_of().dirty
    with pytest.raises(Exception, match="the submission is settled: completed"):
        api.abort(receipt, reason="too late")
    assert (trail(), row_of().dirty) == ([], before)


@pytest.mark.parametrize("by", ["id", "text", "name"])
def test_an_approval_is_decided_by_its_id_or_by_who_asks_under_which_name(asking: api.Receipt, by: str) -> None:
    approval = Approval.objects.get()
    given: Any = {"id": approval.pk, "text": str(approval.pk), "name": asking}[by]
    decided = api.resolve_approval(
        given, "approved", name="refund" if by == "name" else None, actor="ann", reason="fine"
    )
    assert (decided.decision, decided.resolver) == ("approved", "ann")
    api.resolve_approval(approval.pk, "approved", actor="bob", reason="again")
    assert trail() == [("resolve_approval", "t", "ann", "fine")]
    assert OperatorAction.objects.get().after.keys() == {"submission", "approval", "decision"}


def test_an_approval_that_nobody_asked_for_names_those_that_are_open(asking: api.Receipt) -> None:
    with pytest.raises(Exception, match="has not asked for approval 'refnud'; open are: 'refund'"):
        api.resolve_approval(asking, "approved", name="refnud", reason="fine")
    with pytest.raises(Exception, match="that is not the id of an approval"):
        api.resolve_approval("refund", "approved", reason="fine")


@pytest.mark.parametrize("decision", ["expired", "withdrawn", "", "yes"])
def test_a_person_can_only_approve_or_deny(asking: api.Receipt, decision: str) -> None:
    with pytest.raises(Exception, match="a decision is one of approved, denied"):
        api.resolve_approval(Approval.objects.get().pk, decision, reason="fine")


def test_an_answer_about_an_unknown_call_keeps_who_and_why(declare: Declare) -> None:
    def pay() -> None:
        raise api.OutcomeUnknown("no answer came")

    declare("payer", lambda ctx, _: ctx.call_tool(pay))
    receipt = api.submit("t", "payer", None)
    run()
    call = ToolCall.objects.get()
    api.resolve_unknown(receipt, call.call, "completed-with-result", result="secret", actor="ann", reason="looked")
    api.resolve_unknown(receipt, call.call, "completed-with-result", result="secret", actor="bob", reason="me too")
    assert trail() == [("resolve_unknown", "t", "ann", "looked")]
    assert OperatorAction.objects.get().after["resolution"] == "completed-with-result"
    assert "secret" not in str(OperatorAction.objects.get().after)


def test_an_event_is_written_down_if_a_person_gives_a_reason(asking: api.Receipt) -> None:
    assert api.send_event("t", "paid", {"card": 1})
    assert trail() == []
    assert api.send_event("t", "paid", {"card": 1}, key="k", actor="ann", reason="the hook is down")
    assert not api.send_event("t", "paid", {"card": 1}, key="k", actor="ann", reason="again")
    assert trail() == [("send_event", "t", "ann", "the hook is down")]
    assert OperatorAction.objects.get().after == {"event": "paid", "key": "k"}


def test_r19_a_wake_costs_one_pass_and_no_generation(asking: api.Receipt) -> None:
    before = row_of()
    assert api.wake("t", actor="ann", reason="a look")
    run()
    after = row_of()
    assert (after.dirty, after.processed, after.alarm_at) == (before.dirty, before.processed, None)
    assert trail() == [("wake", "t", "ann", "a look")]


@pytest.mark.parametrize("verb", ["wake", "force_pass"])
def test_a_thread_that_is_not_there_is_told(verb: str) -> None:
    with pytest.raises(Exception, match="there is no thread 'nowhere'"):
        getattr(api, verb)("nowhere", reason="r")


def test_a_very_long_reason_is_cut(asking: api.Receipt) -> None:
    api.abort(asking, reason="x" * (MAX_SAID + 1))
    assert len(OperatorAction.objects.get().reason) == MAX_SAID


def test_what_is_no_id_is_told_before_anything_is_read() -> None:
    with counted_statements() as statements, pytest.raises(Exception, match="that is not the id of a submission"):
        api.explain("not an id")
    assert statements.sql == []


# --- Reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["settlement", "wait_for_settlement", "await_for_settlement", "progress"])
def test_what_carries_payloads_needs_the_permission_to_see_them(verb: str) -> None:
    assert PERMISSIONS[VERBS[verb][0]] == "wakeful_agents.view_payload"


def test_a_thread_is_shown_without_payloads_to_who_may_not_see_them(echo: str) -> None:
    api.submit("t", echo, {"card": "4111"})
    run()
    shown = api.show("t", actor=user("wakeful_agents.view_logrecord"))
    assert "4111" not in json.dumps(shown)
    assert [record["family"] for record in shown["log"]] == ["thread-created", "user-input", "submission-settled"]
    settled = canonical.encode(api.progress("t")[-1].payload)
    assert shown["log"][-1].keys() == {"sequence", "at", "family", "id", "payload_digest", "payload_bytes"}
    assert shown["log"][-1]["payload_digest"] == canonical.digest(settled)
    assert shown["log"][-1]["payload_bytes"] == len(settled)


def test_a_thread_is_shown_with_payloads_to_who_may_see_them(echo: str) -> None:
    api.submit("t", echo, {"card": "4111"})
    run()
    looker = user("wakeful_agents.view_logrecord", "wakeful_agents.view_payload")
    assert [api.show("t", last=1, actor=who)["log"][0]["payload"]["result"] for who in (looker, None, "cron")] == [
        {"card": "4111"}
    ] * 3


def test_the_permission_to_see_payloads_alone_shows_no_thread(echo: str) -> None:
    api.submit("t", echo, 1)
    with pytest.raises(OperationDenied, match="view_logrecord is missing"):
        api.show("t", actor=user("wakeful_agents.view_payload"))


def test_show_asks_for_itself_and_then_for_the_payloads(guard: type[Guard], echo: str) -> None:
    api.submit("t", echo, 1)
    guard.answer = True
    api.show("t", actor="somebody")
    assert [(asked.operation, asked.thread_id) for asked in guard.asked] == [("show", "t"), ("observe", "t")]


def test_q09_the_progress_of_no_thread_is_an_error() -> None:
    with pytest.raises(Exception, match="there is no thread 'nowhere'"):
        api.progress("nowhere")


@pytest.mark.parametrize("limit", [0, -1, 1_025])
def test_q13_a_page_of_no_or_too_many_records_is_refused(asking: api.Receipt, limit: int) -> None:
    with pytest.raises(Exception, match="a page holds 1 to 1024 records"):
        api.progress("t", limit=limit)
    assert len(api.progress("t", limit=1_024)) == 3


def test_a_submission_by_trusted_code_asks_nobody(guard: type[Guard], echo: str) -> None:
    assert api.submit("t", echo, 1).queue_sequence == 1
    assert guard.asked == []
    assert Submission.objects.count() == 1
