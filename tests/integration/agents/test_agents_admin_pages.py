"""Pages and lists of agents in the admin: read-only, linked, found, cheap (issue: admin inspection)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.urls import reverse

from agents import api
from agents.admin import filters, payloads
from agents.models import Approval, Attempt, Event, LogRecord, Submission, Thread, ToolCall
from maintenance.admin import readonly
from tests.integration.agents.admin_kit import (
    MODELS,
    SECRET,
    Desk,
    desk,
    list_url,
    listed,
    looker,
    page_of,
    page_url,
)
from tests.operators import lose
from tests.statements import counted_statements
from tests.tools_kit import world

if TYPE_CHECKING:
    from django.db.models import Model
    from django.test import Client

__all__ = ["desk", "world"]

pytestmark = pytest.mark.django_db


def rows_of(model: str) -> list[Model]:
    return list(apps.get_model("wakeful_agents", model)._default_manager.all())


def head(thread_id: str) -> Submission:
    return Submission.objects.filter(thread_id=thread_id).order_by("queue_sequence")[0]


# --- Reading only -------------------------------------------------------------------------------


def test_every_row_in_every_state_has_its_page_and_its_lists(desk: Desk) -> None:
    desk.everything()
    client = looker("view_payload")

    for model in MODELS:
        rows = rows_of(model)
        assert rows, f"no {model}"
        assert {row.pk for row in listed(client, model)} == {row.pk for row in rows}
        for row in rows:
            page_of(client, row)


def test_nobody_adds_changes_or_deletes(desk: Desk, admin_client: Client) -> None:
    """Editing storage is never the repair path, not even for a superuser."""
    desk.everything()
    for model in MODELS:
        assert admin_client.get(reverse(f"admin:wakeful_agents_{model}_add")).status_code == 403
        assert "delete_selected" not in admin_client.get(list_url(model)).content.decode()
        row = rows_of(model)[0]
        assert admin_client.post(page_url(row), {"state": "settled"}).status_code == 403
        assert admin_client.post(page_url(row).replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("model", MODELS)
def test_a_view_permission_is_asked_for(model: str) -> None:
    client = looker()
    assert client.get(list_url(model)).status_code == 200

    lose(client, f"view_{model}")

    assert client.get(list_url(model)).status_code == 403


def test_a_page_shows_rows_of_another_kind_only_to_who_may_list_them(desk: Desk) -> None:
    approval = desk.asking()
    client = looker("resolve_approval")
    assert page_url(approval) in page_of(client, Thread.objects.get())

    lose(client, "view_approval")

    assert page_url(approval) not in page_of(client, Thread.objects.get())
    assert page_url(approval) not in page_of(client, head("asking"))


# --- Why it does not move -----------------------------------------------------------------------


def test_the_pages_of_thread_and_submission_say_why_it_does_not_move(desk: Desk) -> None:
    desk.asking()
    api.submit("asking", "echo", 1)
    client, first = looker(), head("asking")
    sentence = api.explain(first.pk).sentence

    assert "Waits for approval of refund(card: text)" in page_of(client, first)
    page = page_of(client, Thread.objects.get())
    assert f"Submission #1 (1 more submission behind it): {sentence[:40]}" in page
    assert "Queued behind submission #1, which waits for approval" in page


def test_a_thread_that_owes_nothing_says_so(desk: Desk) -> None:
    desk.submit("done", "echo")

    assert "Nothing is owed." in page_of(looker(), Thread.objects.get())


def test_the_page_of_a_thread_opens_although_its_log_cannot_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents.operations import explain

    desk.asking()

    def fail(_: str) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr(explain, "gather", fail)
    for row in (Thread.objects.get(), head("asking")):
        page = page_of(looker(name=f"ann-{type(row).__name__}"), row)
        assert "cannot be told: ValueError was raised" in page
        assert SECRET not in page


def test_the_page_of_a_thread_lists_what_it_owes_whom_it_asks_and_what_it_has_done(desk: Desk) -> None:
    call = desk.unknown()
    desk.submit("other", "asker")
    done = desk.submit("unknown-2", "echo")
    page = page_of(looker(), Thread.objects.get(pk="unknown"))

    assert page_url(call) in page
    assert page_url(head("unknown")) in page
    assert "All that is owed" in page
    assert page_url(head("other")) not in page
    assert page_url(LogRecord.objects.filter(thread_id="unknown").latest("sequence")) in page
    assert page_url(done) in page_of(looker(name="bob"), Thread.objects.get(pk="unknown-2"))


# --- Links --------------------------------------------------------------------------------------


def test_everything_is_linked_to_each_other_and_to_the_maintenance_row(desk: Desk) -> None:
    desk.everything()
    client = looker()
    call = ToolCall.objects.get(submission__thread_id="unknown")
    first, thread = call.submission, Thread.objects.get(pk="unknown")
    maintained = reverse("admin:wakeful_maintenance_threadmaintenance_change", args=["unknown"])

    for row in (
        call,
        Attempt.objects.filter(submission=first)[0],
        LogRecord.objects.get(record_id=f"input:{first.pk}"),
    ):
        page = page_of(client, row)
        assert page_url(first) in page
        assert page_url(thread) in page
    assert maintained in page_of(client, thread)
    page = page_of(client, first)
    assert maintained in page
    for other in (call, thread, Attempt.objects.filter(submission=first)[0]):
        assert page_url(other) in page


def test_a_joined_submission_leads_to_its_host_and_back(desk: Desk) -> None:
    desk.everything()
    host, follower = Submission.objects.filter(thread_id="joined").order_by("queue_sequence")

    assert page_url(host) in page_of(looker(), follower)
    assert page_url(follower) in page_of(looker(name="bob"), host)


def test_an_answered_call_an_abort_and_a_taken_event_lead_to_who_did_it(desk: Desk) -> None:
    desk.everything()
    client = looker()
    past = list(Submission.objects.filter(thread_id="past").order_by("queue_sequence"))
    call = ToolCall.objects.get(submission__thread_id="past")

    assert "I looked" in page_of(client, call)
    assert page_url(call) in page_of(client, call.resolutions.get())
    assert page_url(past[2]) in page_of(client, Event.objects.get())
    assert "not needed" in page_of(client, past[3])
    assert page_url(past[3]) in page_of(client, past[3].abort_intent)


@pytest.mark.parametrize("thread_id", ["order/42 ü", "<script>alert(1)</script>", "50%_", "x" * 255])
def test_any_thread_id_has_its_pages(thread_id: str, desk: Desk) -> None:
    desk.asking(thread_id)
    client = looker("view_payload", "resolve_approval", "abort_submission", "retry_submission")

    for model in ("thread", "submission", "approval", "attempt", "logrecord"):
        assert "<script>alert" not in client.get(list_url(model)).content.decode()
        for row in rows_of(model):
            assert "<script>alert" not in page_of(client, row)
    assert [row.thread_id for row in listed(client, "submission", thread=thread_id)] == [thread_id]


# --- Payloads -----------------------------------------------------------------------------------


def test_a_payload_is_hidden_from_who_may_not_see_it_on_every_page_and_list(desk: Desk) -> None:
    desk.everything()
    client = looker("resolve_approval", "resolve_unknown", "abort_submission", "retry_submission")

    for model in MODELS:
        assert SECRET not in client.get(list_url(model)).content.decode()
        for row in rows_of(model):
            assert SECRET not in page_of(client, row), row
    assert payloads.HIDDEN in page_of(client, Approval.objects.filter(decision="")[0])


def test_a_payload_is_shown_to_who_may_see_it(desk: Desk) -> None:
    desk.everything()
    client = looker("view_payload")

    showing = {model for model in MODELS if any(SECRET in page_of(client, row) for row in rows_of(model))}

    assert showing == {"submission", "approval", "unknownresolution", "event", "logrecord"}


def test_the_arguments_of_a_call_are_hidden_and_shown_alike(desk: Desk) -> None:
    call = desk.unknown()
    shown = "&quot;amount&quot;: 5"

    assert shown not in page_of(looker(), call)
    assert shown in page_of(looker("view_payload", name="bob"), call)


def test_a_hidden_payload_is_not_even_read(desk: Desk) -> None:
    record = LogRecord.objects.filter(thread_id=desk.submit("done", "echo").thread_id)[1]
    client = looker()
    client.get(page_url(record))

    with counted_statements() as statements:
        client.get(page_url(record))

    assert statements.sql
    assert not [sql for sql in statements.sql if _READS_TEXT.search(sql)]


_READS_TEXT = re.compile(r'SELECT .*(?<!\()"wakeful_agents_logrecord"\."text"[, ].* FROM')


def test_a_long_payload_is_cut(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "LONGEST", 10)
    row = desk.submit("done", "echo")
    page = page_of(looker("view_payload"), row)

    assert "more characters are not shown" in page
    assert SECRET not in page


# --- Filters and search -------------------------------------------------------------------------


FOUND: dict[str, list[tuple[dict[str, str], set[str]]]] = {
    "submission": [
        ({"state": "open"}, {"asking", "unknown", "sleeping", "listening", "limited", "joined"}),
        ({"state": "suspended"}, {"asking", "sleeping", "listening", "limited", "joined"}),
        ({"state": "unknown"}, {"unknown"}),
        ({"state": "joined"}, {"joined"}),
        ({"state": "ready"}, {"unknown"}),
        ({"state": "settled"}, {"done", "failed", "past"}),
        ({"waits_for": "approval"}, {"asking"}),
        ({"waits_for": "event"}, {"listening"}),
        ({"waits_for": "retry"}, {"limited"}),
        ({"waits_for": "timer"}, {"sleeping", "joined"}),
        ({"outcome": "failed"}, {"failed"}),
        ({"outcome": "aborted"}, {"past"}),
        ({"outcome": "completed", "thread": "done"}, {"done"}),
        ({"state": "nonsense", "thread": "done"}, {"done"}),
        ({"q": "sleeping"}, {"sleeping"}),
        ({"q": "sleepin"}, set()),
    ],
    "toolcall": [
        ({"status": "unanswered"}, {"unknown"}),
        ({"status": "unknown"}, {"unknown"}),
        ({"status": "settled"}, {"past"}),
        ({"kind": "ordinary"}, {"unknown", "past"}),
        ({"kind": "idempotent"}, set()),
        ({"q": "past"}, {"past"}),
    ],
    "approval": [
        ({"decision": "open"}, {"asking"}),
        ({"decision": "denied"}, {"past"}),
    ],
    "attempt": [
        ({"ending": "retried"}, {"limited"}),
        ({"ending": "open"}, {"unknown"}),
        ({"submission": "nonsense"}, set()),
    ],
    "unknownresolution": [
        ({"resolution": "completed-with-result"}, {"past"}),
        ({"resolution": "abort"}, set()),
    ],
    "event": [
        ({"taken": "yes"}, {"past"}),
        ({"taken": "no"}, set()),
        ({"q": "past"}, {"past"}),
        ({"q": "paid", "thread": "past"}, {"past"}),
    ],
    "logrecord": [
        ({"family": "approval-requested"}, {"asking", "past"}),
        ({"thread": "failed"}, {"failed"}),
        ({"q": "thread-created:done", "thread": "done"}, {"done"}),
        ({"thread": "failed\x00"}, set()),
    ],
    "abortintent": [
        ({"thread": "past"}, {"past"}),
        ({"thread": "other"}, set()),
    ],
    "thread": [
        ({"q": "do"}, {"done"}),
    ],
}
"""For each list: a query, and the threads whose rows it gives."""


def test_lists_are_filtered_and_searched(desk: Desk) -> None:
    desk.everything()
    client = looker()

    found = {
        model: [(query, {_thread_of(row) for row in listed(client, model, **query)}) for query, _ in queries]
        for model, queries in FOUND.items()
    }

    assert found == FOUND


def _thread_of(row: Any) -> str:
    row = getattr(row, "tool_call", row)
    row = getattr(row, "submission", row)
    return str(row.thread_id)


def test_a_submission_is_found_by_its_id_the_beginning_of_it_and_its_key(desk: Desk) -> None:
    row = desk.submit("done", "echo")
    tried = Attempt.objects.get(submission=row)
    client = looker()

    for term in (str(row.pk), str(row.pk)[:18], row.pk.hex[:20].upper()):
        assert listed(client, "submission", q=term) == [row]
        assert listed(client, "attempt", q=term) == [tried]
    assert listed(client, "submission", q=row.idempotency_key) == []
    assert listed(client, "submission", q=row.idempotency_key, thread="done") == [row]
    assert listed(client, "submission", q=row.pk.hex[:7]) == []


def test_a_log_is_listed_from_its_end_or_from_a_place_on(desk: Desk) -> None:
    desk.asking()
    client = looker()

    assert [row.sequence for row in listed(client, "logrecord", thread="asking")] == [3, 2, 1]
    assert [row.sequence for row in listed(client, "logrecord", **{"thread": "asking", "from": "2"})] == [2, 3]
    assert listed(client, "logrecord", **{"thread": "asking", "from": "x"}) == []


def test_who_is_waited_for_longest_comes_first(desk: Desk) -> None:
    first, second = desk.asking("a"), desk.asking("b")
    client = looker()

    assert listed(client, "approval", decision="open") == [first, second]
    assert listed(client, "approval") == [second, first]


# --- Cost ---------------------------------------------------------------------------------------


def test_a_list_costs_the_same_statements_however_long(desk: Desk) -> None:
    """The session, the user, its permissions, two readings of the clock, one count, one page."""
    desk.everything()
    client = looker("resolve_approval", "resolve_unknown", "abort_submission", "retry_submission")
    few = {model: _cost_of_list(client, model) for model in MODELS}
    for number in range(3):
        desk.asking(f"more-{number}")
        desk.unknown(f"more-{number + 10}")
        api.submit(f"more-{number}", "echo", 1)

    many = {model: _cost_of_list(client, model) for model in MODELS}

    assert many == few
    assert max(many.values()) <= 8


def _cost_of_list(client: Client, model: str) -> int:
    with counted_statements() as statements:
        client.get(list_url(model))
    return len(statements)


def test_the_page_of_a_thread_costs_the_same_statements_however_much_it_owes(desk: Desk) -> None:
    desk.asking()
    client, thread = looker("resolve_approval"), Thread.objects.get()
    api.submit("asking", "echo", 1)
    page_of(client, thread)
    with counted_statements() as few:
        page_of(client, thread)
    for _ in range(20):
        api.submit("asking", "echo", 1)

    with counted_statements() as many:
        page_of(client, thread)

    assert len(many) == len(few)


def test_a_filter_without_an_index_looks_at_the_newest_rows_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "NEWEST", 2)
    old, new, newer = (desk.submit(thread_id, "failer") for thread_id in "abc")
    client = looker()

    assert listed(client, "submission", outcome="failed") == [newer, new]
    assert listed(client, "submission", outcome="failed", thread="a") == [old]
    assert listed(client, "submission", outcome="failed", q="a") == [old]


def test_a_list_counts_no_further_than_it_shows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readonly, "MOST_LISTED", 2)
    for thread_id in "abc":
        desk.submit(thread_id, "echo")

    page = looker().get(list_url("submission"))

    assert page.context["cl"].result_count == 2
    assert "The first 2 submissions; there are more." in " ".join(page.content.decode().split())
