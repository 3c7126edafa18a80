"""Acting on agents in the admin: permission, reason, the service's answer, the audit row, friendly refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.utils.html import escape

from agents import api
from agents.models import AbortIntent, Approval, Submission, Thread, ToolCall, UnknownResolution
from agents.operations.authorize import Asked
from maintenance.models import OperatorAction
from tests.agents_kit import run
from tests.factories import row_of
from tests.integration.agents.admin_kit import SECRET, Desk, act, act_url, desk, list_url, looker, page_of, said
from tests.operators import lose
from tests.tools_kit import world

if TYPE_CHECKING:
    from django.db.models import Model
    from django.test import Client
    from pytest_django import Settings

__all__ = ["desk", "world"]

pytestmark = pytest.mark.django_db

ACTIONS = {
    "approve": "resolve_approval",
    "deny": "resolve_approval",
    "resolve": "resolve_unknown",
    "retry": "retry_submission",
    "abort": "abort_submission",
}
"""Each action and the permission of its own."""

EVERY = tuple(dict.fromkeys(ACTIONS.values()))
FORMS = {"resolve": {"resolution": "never-started"}}
"""What the form of an action needs beside the reason."""


def subject(desk: Desk, action: str) -> Model:
    """A row on which the action does something."""
    match action:
        case "approve" | "deny":
            return desk.asking()
        case "resolve":
            return desk.unknown()
        case _:
            return desk.submit("sleeping", "sleeper")


def untouched() -> bool:
    """Whether nobody has done anything."""
    answers = UnknownResolution.objects.exists() or AbortIntent.objects.exists() or OperatorAction.objects.exists()
    return not answers and not Approval.objects.exclude(decision="").exists() and not LogEntry.objects.exists()


# --- Permission ---------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
def test_without_its_permission_an_action_is_not_offered_and_not_done(action: str, desk: Desk) -> None:
    row = subject(desk, action)
    client = looker(*(permission for permission in EVERY if permission != ACTIONS[action]))
    model, generation = str(row._meta.model_name), row_of(str(_thread_of(row))).dirty

    assert f'value="{action}"' not in client.get(list_url(model)).content.decode()
    assert f"/act/{action}/" not in page_of(client, row)
    assert client.get(act_url(model, action), {"_selected_action": str(row.pk)}).status_code == 403
    assert act(client, row, action, reason="a drill", **FORMS.get(action, {})).status_code == 403
    assert untouched()
    assert row_of(str(_thread_of(row))).dirty == generation


def _thread_of(row: Any) -> str:
    return str(getattr(row, "submission", row).thread_id)


@pytest.mark.parametrize("action", ACTIONS)
def test_with_its_permission_alone_an_action_is_offered_in_list_and_page(action: str, desk: Desk) -> None:
    row = subject(desk, action)
    client = looker(ACTIONS[action])

    assert f'value="{action}"' in client.get(list_url(str(row._meta.model_name))).content.decode()
    assert f"/act/{action}/?_selected_action={row.pk}" in page_of(client, row)


@pytest.mark.parametrize("action", ["approve", "resolve"])
def test_an_answer_is_offered_where_the_thread_and_the_submission_are_looked_at(action: str, desk: Desk) -> None:
    row: Any = subject(desk, action)
    thread = Thread.objects.get()
    client = looker(ACTIONS[action])

    for page in (page_of(client, thread), page_of(client, row.submission)):
        assert f"/act/{action}/?_selected_action={row.pk}" in page
    lose(client, ACTIONS[action])
    for page in (page_of(client, thread), page_of(client, row.submission)):
        assert f"/act/{action}/" not in page


class Nobody:
    """An authorizer of the project that knows better."""

    def allows(self, asked: Asked) -> bool:
        return asked.operation == "explain" or not hasattr(asked.actor, "has_perm")


@pytest.mark.parametrize("action", ACTIONS)
def test_the_authorizer_of_the_project_is_asked_for_the_user_and_its_no_is_said(
    action: str, desk: Desk, settings: Settings
) -> None:
    row = subject(desk, action)
    settings.AGENTS = {**settings.AGENTS, "AUTHORIZER": f"{__name__}.Nobody"}

    answer = act(looker(*EVERY), row, action, reason="a drill", **FORMS.get(action, {}))

    assert "the authorizer does not allow it" in said(answer)[0]
    assert untouched()


# --- Reason -------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("reason", ["", "   "])
def test_without_a_reason_nothing_is_done_and_the_page_comes_back(action: str, reason: str, desk: Desk) -> None:
    row = subject(desk, action)

    page = act(looker(*EVERY), row, action, reason=reason, **FORMS.get(action, {}))

    assert page.status_code == 200
    assert page.context["form"].errors["reason"]
    assert untouched()


@pytest.mark.parametrize("action", ACTIONS)
def test_choosing_an_action_only_shows_what_will_happen(action: str, desk: Desk) -> None:
    row = subject(desk, action)
    client = looker(*EVERY)
    form = {"action": action, "_selected_action": [str(row.pk)], "index": "0"}

    page = client.post(list_url(str(row._meta.model_name)), form)

    assert page.status_code == 200
    assert escape(page.context["action"].explanation) in page.content.decode()
    assert page.context["form"].fields["reason"].required
    assert untouched()


@pytest.mark.parametrize("action", ["approve", "resolve"])
def test_who_decides_sees_the_arguments_if_payloads_may_be_seen(action: str, desk: Desk) -> None:
    row = subject(desk, action)
    url, chosen = act_url(str(row._meta.model_name), action), {"_selected_action": str(row.pk)}
    shown = {"approve": SECRET, "resolve": "&quot;amount&quot;: 5"}[action]

    assert shown in looker(*EVERY, "view_payload").get(url, chosen).content.decode()
    assert shown not in looker(*EVERY, name="bob").get(url, chosen).content.decode()


# --- The deed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_done_is_kept_in_both_logs_with_actor_and_reason(action: str, desk: Desk) -> None:
    row = subject(desk, action)
    operation = {"approve": "resolve_approval", "deny": "resolve_approval", "resolve": "resolve_unknown"}

    answer = act(looker(*EVERY), row, action, reason="a customer called", **FORMS.get(action, {}))

    done, entry = OperatorAction.objects.get(), LogEntry.objects.get()
    assert answer.status_code == 302
    assert ": done for " in said(answer)[0]
    assert (done.action, done.thread_id, done.actor, done.reason) == (
        operation.get(action, action),
        _thread_of(row),
        "ann",
        "a customer called",
    )
    assert (entry.object_id, entry.user.get_username()) == (str(row.pk), "ann")
    assert "a customer called" in entry.change_message


@pytest.mark.parametrize(("action", "decision"), [("approve", "approved"), ("deny", "denied")])
def test_a_decision_reaches_the_run(action: str, decision: str, desk: Desk) -> None:
    approval = desk.asking()

    act(looker("resolve_approval"), approval, action, reason="I know the customer")
    run()

    approval.refresh_from_db()
    assert (approval.decision, approval.decided_by) == (decision, "ann")
    assert api.settlement(approval.submission_id).result == "I know the customer"  # type: ignore[union-attr]


def test_many_questions_are_decided_at_once(desk: Desk) -> None:
    asked = [desk.asking(thread_id) for thread_id in "abc"]
    client = looker("resolve_approval")

    answer = client.post(
        act_url("approval", "approve"), {"_selected_action": [str(row.pk) for row in asked], "reason": "all fine"}
    )

    assert "refund (refund) of asker #1 of a, refund (refund) of asker #1 of b" in said(answer)[0]
    assert set(Approval.objects.values_list("decision", flat=True)) == {"approved"}
    assert OperatorAction.objects.count() == 3


def test_an_abort_ends_the_submission(desk: Desk) -> None:
    row = desk.submit("sleeping", "sleeper")

    act(looker("abort_submission"), row, "abort", reason="not needed")
    run()

    row.refresh_from_db()
    assert row.outcome == "aborted"


# --- Conflicts ----------------------------------------------------------------------------------


def test_a_decision_against_one_that_stands_is_answered_with_it(desk: Desk) -> None:
    approval = desk.asking()
    act(looker("resolve_approval"), approval, "approve", reason="fine")

    answer = act(looker("resolve_approval", name="bob"), approval, "deny", reason="no")

    expected = "Deny failed for refund (refund) of asker #1 of asking: ann has decided: approved."
    assert said(answer) == [expected]
    assert Approval.objects.get().decided_by == "ann"
    assert LogEntry.objects.count() == OperatorAction.objects.count() == 1


def test_the_same_decision_again_changes_nothing_and_says_so(desk: Desk) -> None:
    approval = desk.asking()
    act(looker("resolve_approval"), approval, "approve", reason="fine")

    answer = act(looker("resolve_approval", name="bob"), approval, "approve", reason="fine, too")

    assert said(answer)[0].endswith("had been approved before: that decision stands.")
    assert Approval.objects.get().reason == "fine"
    assert OperatorAction.objects.count() == 1


def test_what_is_decided_expired_or_settled_is_not_offered_any_more(desk: Desk) -> None:
    approval = desk.asking()
    client = looker(*EVERY)
    act(client, approval, "deny", reason="no")
    run()

    assert "/act/" not in page_of(client, approval)
    assert "/act/" not in page_of(client, approval.submission)


@pytest.mark.parametrize(
    ("thread_id", "agent", "action", "text"),
    [
        ("done", "echo", "abort", "the submission is settled: completed"),
        ("done", "echo", "retry", "retry refused (settled)"),
        ("asking", "asker", "retry", "retry refused (await-approval-decision)"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    thread_id: str, agent: str, action: str, text: str, desk: Desk
) -> None:
    row = desk.submit(thread_id, agent)

    answer = act(looker(*EVERY), row, action, reason="a drill")

    assert text in said(answer)[0]
    assert untouched()


def test_a_second_abort_is_answered_with_the_first(desk: Desk) -> None:
    row = desk.submit("sleeping", "sleeper")
    act(looker("abort_submission"), row, "abort", reason="first")

    answer = act(looker("abort_submission", name="bob"), row, "abort", reason="second")

    assert said(answer)[0].endswith("had been asked to end before: that request stands.")
    assert AbortIntent.objects.get().reason == "first"


# --- What became of a call ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "result"),
    [
        ({"resolution": "completed-with-result", "result": '{"charged": 5}'}, {"charged": 5}),
        ({"resolution": "completed-with-result", "result": "null"}, None),
        ({"resolution": "never-started"}, "charge 5"),
        ({"resolution": "safe-retry"}, "charge 5"),
    ],
)
def test_an_answer_is_what_the_run_goes_on_with(form: dict[str, str], result: Any, desk: Desk) -> None:
    call = desk.unknown()

    act(looker("resolve_unknown"), call, "resolve", reason="I looked", **form)
    run()

    settled = api.settlement(call.submission_id)
    assert settled is not None
    assert settled.result == result


def test_an_error_is_told_to_the_run(desk: Desk) -> None:
    call = desk.unknown()
    form = {"resolution": "failed-with-error", "error": "declined by the bank"}

    act(looker("resolve_unknown"), call, "resolve", reason="I looked", **form)
    run()

    settled = api.settlement(call.submission_id)
    assert settled is not None
    assert settled.outcome == "failed"
    assert UnknownResolution.objects.get().result == '"declined by the bank"'


def test_giving_up_aborts_the_submission(desk: Desk) -> None:
    call = desk.unknown()

    act(looker("resolve_unknown"), call, "resolve", reason="too old", resolution="abort")
    run()

    assert Submission.objects.get().outcome == "aborted"


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({}, "resolution"),
        ({"resolution": "nonsense"}, "resolution"),
        ({"resolution": "completed-with-result"}, "result"),
        ({"resolution": "completed-with-result", "result": "{charged: 5}"}, "result"),
        ({"resolution": "completed-with-result", "result": "NaN"}, "result"),
        ({"resolution": "completed-with-result", "result": "9007199254740993"}, "result"),
        ({"resolution": "completed-with-result", "result": '"\\ud800"'}, "result"),
        ({"resolution": "completed-with-result", "result": "[" * 100 + "]" * 100}, "result"),
        ({"resolution": "completed-with-result", "result": "[" * 100_000}, "result"),
        ({"resolution": "completed-with-result", "result": "1", "error": "x"}, "error"),
        ({"resolution": "failed-with-error"}, "error"),
        ({"resolution": "failed-with-error", "error": "  "}, "error"),
        ({"resolution": "failed-with-error", "error": "x", "result": "1"}, "result"),
        ({"resolution": "never-started", "result": "1"}, "result"),
        ({"resolution": "abort", "error": "x"}, "error"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_before_anything_is_written(
    form: dict[str, str], field: str, desk: Desk
) -> None:
    call = desk.unknown()

    page = act(looker("resolve_unknown"), call, "resolve", reason="I looked", **form)

    assert page.status_code == 200
    assert set(page.context["form"].errors) == {field}
    assert untouched()


def test_a_result_that_is_too_large_is_refused_on_the_form(desk: Desk, settings: Settings) -> None:
    call = desk.unknown()
    settings.AGENTS = {**settings.AGENTS, "MAX_STEP_RESULT_BYTES": 10}
    form = {"resolution": "completed-with-result", "result": '"12345678901"'}

    page = act(looker("resolve_unknown"), call, "resolve", reason="I looked", **form)

    assert page.context["form"].errors == {"result": ["It has 13 bytes; at most 10 are allowed."]}
    assert untouched()


def test_an_answer_about_an_earlier_try_than_the_present_one_is_refused(desk: Desk) -> None:
    call = desk.unknown()
    client = looker("resolve_unknown")
    page = client.get(act_url("toolcall", "resolve"), {"_selected_action": str(call.pk)})
    shown = page.context["form"]["shown"].value()
    assert f'value="{shown}"' in page.content.decode()
    ToolCall.objects.update(tries=2)

    answer = act(client, call, "resolve", reason="I looked", resolution="never-started", shown=shown)

    assert "try 1 of the call is not the present one" in said(answer)[0]
    assert not UnknownResolution.objects.exists()


def test_a_contrary_answer_is_answered_with_the_one_that_stands(desk: Desk) -> None:
    call = desk.unknown()
    act(looker("resolve_unknown"), call, "resolve", reason="I looked", resolution="never-started")
    bob = looker("resolve_unknown", name="bob")

    contrary = act(bob, call, "resolve", reason="I looked", resolution="safe-retry")
    same = act(bob, call, "resolve", reason="I looked", resolution="never-started")

    assert said(contrary)[0].endswith("ann has resolved the call: never-started.")
    assert said(same)[-1].endswith("had been answered like this before: that answer stands.")
    assert UnknownResolution.objects.get().author == "ann"


# --- Transactions -------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_under_atomic_requests_too_many_threads_are_acted_on_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, admin_client: Client
) -> None:
    """A second thread inside one transaction would be refused: each object has its own."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    rows = [desk.submit(thread_id, "sleeper") for thread_id in "ab"]

    answer = admin_client.post(
        act_url("submission", "abort"), {"_selected_action": [str(row.pk) for row in rows], "reason": "over"}
    )

    assert len(said(answer)) == 1
    assert AbortIntent.objects.count() == 2
