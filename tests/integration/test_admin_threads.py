"""The thread admin: list, filters, the page of a thread (the design, 5; field reports A9, Q1)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse
from django.utils.http import urlencode

from maintenance.admin import readonly
from maintenance.models import MutationLease, OperatorAction, PassRun
from tests.factories import MS, live_lease, make_row, row_of
from tests.operators import lose, operator

if TYPE_CHECKING:
    from django.test import Client

    from maintenance.clock import FrozenClock

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen", "sent", "stage")]

MODELS = ("threadmaintenance", "passrun", "operatoraction", "mutationlease", "workerheartbeat")
HOUR_MS = 3_600_000


def list_url(model: str = "threadmaintenance", **query: str) -> str:
    url = reverse(f"admin:wakeful_maintenance_{model}_changelist")
    return f"{url}?{urlencode(query)}" if query else url


def listed(client: Client, **query: str) -> list[str]:
    return [row.pk for row in client.get(list_url(**query)).context["cl"].result_list]


def page_of(client: Client, thread_id: str = "t") -> str:
    from django.contrib.admin.utils import quote

    url = reverse("admin:wakeful_maintenance_threadmaintenance_change", args=[quote(thread_id)])
    return client.get(url).content.decode()


def make_pass(thread_id: str, frozen: FrozenClock, **columns: Any) -> PassRun:
    values = {"epoch": 1, "trigger": "alarm", "outcome": "ran", "owner": "x", **columns}
    return PassRun.objects.create(thread_id=thread_id, started_at=frozen.at, finished_at=frozen.at, **values)


# --- Reading only -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_nobody_adds_changes_or_deletes_a_row(model: str, admin_client: Client) -> None:
    """Editing storage is never the repair path, not even for a superuser."""
    assert admin_client.get(list_url(model)).status_code == 200
    assert admin_client.get(reverse(f"admin:wakeful_maintenance_{model}_add")).status_code == 403
    assert "delete_selected" not in admin_client.get(list_url(model)).content.decode()


def test_a_thread_can_be_neither_changed_nor_deleted(admin_client: Client) -> None:
    make_row(3, 3)
    change = reverse("admin:wakeful_maintenance_threadmaintenance_change", args=["t"])
    delete = reverse("admin:wakeful_maintenance_threadmaintenance_delete", args=["t"])

    assert admin_client.post(change, {"dirty": "9"}).status_code == 403
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    assert row_of().dirty == 3


@pytest.mark.parametrize("model", MODELS)
def test_a_view_permission_is_asked_for(model: str) -> None:
    client = operator()
    assert client.get(list_url(model)).status_code == 200

    lose(client, f"view_{model}")

    assert client.get(list_url(model)).status_code == 403


# --- The list -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("dirty", ["due", "late", "paused", "quarantined", "running", "stalled"]),
        ("overdue", ["late"]),
        ("leased", ["running"]),
        ("stalled", ["stalled"]),
        ("failing", ["late"]),
        ("quarantined", ["quarantined"]),
        ("paused", ["paused"]),
        ("nonsense", ["due", "late", "paused", "quarantined", "quiet", "running", "stalled"]),
    ],
)
def test_the_filter_shows_the_threads_in_a_condition(
    condition: str, expected: list[str], admin_client: Client, frozen: FrozenClock
) -> None:
    make_row(3, 3, thread_id="quiet")
    make_row(4, 3, slot_ms=-100, thread_id="due")
    make_row(4, 3, slot_ms=-9_000, thread_id="late", failures=2)
    make_row(4, 3, slot_ms=900, thread_id="stalled", stalls=1)
    make_row(4, 3, slot_ms=-9_000, thread_id="running", **live_lease())
    make_row(4, 3, slot_ms=-9_000, thread_id="paused", paused_at=frozen.at)
    make_row(4, 3, slot_ms=-9_000, thread_id="quarantined", quarantined_at=frozen.at)

    assert listed(admin_client, condition=condition) == expected


def test_the_overdue_are_listed_the_latest_first(admin_client: Client) -> None:
    make_row(4, 3, slot_ms=-9_000, thread_id="a")
    make_row(4, 3, slot_ms=-60_000, thread_id="b")

    assert listed(admin_client, condition="overdue") == ["b", "a"]


def test_the_search_takes_the_beginning_of_an_id(admin_client: Client) -> None:
    for name in ("order-1", "order-2", "preorder"):
        make_row(3, 3, thread_id=name)

    assert listed(admin_client, q="order-") == ["order-1", "order-2"]


def test_a_row_shows_lag_deadline_lease_setbacks_and_outcome(admin_client: Client, frozen: FrozenClock) -> None:
    make_row(9, 4, slot_ms=90_000, last_outcome="worker_lost", failures=2, **live_lease(12_000))

    page = admin_client.get(list_url()).content.decode()

    assert '<span title="Generation 4 of 9 is acknowledged.">5</span>' in page
    assert ">in 1 min 30 s</time>" in page
    assert ">in 12 s</time>" in page
    assert "another pass" in page
    assert "2 failed" in page
    assert ">worker lost</span>" in page


def test_a_deadline_counts_down_from_the_databases_time(admin_client: Client, frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=-5_000)

    page = admin_client.get(list_url()).content.decode()

    assert f'data-now="{frozen.at.isoformat()}"' in page
    assert "wakeful-promised wakeful-late" in page
    assert ">5 s ago</time>" in page
    assert "wakeful_maintenance/countdown.js" in page


def test_what_is_held_back_is_late_for_nobody(admin_client: Client, frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=-5_000, paused_at=frozen.at)

    assert "wakeful-late" not in admin_client.get(list_url()).content.decode()


def test_q1_a_list_counts_no_further_than_it_shows(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readonly, "MOST_LISTED", 3)
    for name in "abcde":
        make_row(3, 3, thread_id=name)

    page = admin_client.get(list_url())

    assert page.context["cl"].result_count == 3
    assert "The first 3 thread maintenance; there are more. Search or filter" in " ".join(page.content.decode().split())


def test_a_short_list_tells_its_true_count(admin_client: Client) -> None:
    make_row(3, 3)

    assert "1 thread maintenance" in " ".join(admin_client.get(list_url()).content.decode().split())


@pytest.mark.postgres
def test_q1_a_long_list_tells_about_how_many_there_are(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, frozen: FrozenClock
) -> None:
    from django.db import connection

    monkeypatch.setattr(readonly, "MOST_LISTED", 3)
    for name in "abcde":
        make_row(3, 3, thread_id=name)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE wakeful_maintenance_threadmaintenance")

    assert "of about 5." in admin_client.get(list_url()).content.decode()


@pytest.mark.parametrize("rows", [1, 40])
def test_q1_a_list_costs_the_same_statements_however_long(
    rows: int, admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    """The session, the user, two readings of the clock, one count, one page."""
    for number in range(rows):
        make_row(4, 3, slot_ms=-number, thread_id=f"t{number}", **live_lease())

    with django_assert_max_num_queries(6):
        admin_client.get(list_url())


# --- The page of a thread -----------------------------------------------------------------------


def test_a9_the_page_shows_deadline_reason_token_and_last_hand_over(admin_client: Client, frozen: FrozenClock) -> None:
    make_row(
        3,
        3,
        slot_ms=HOUR_MS,
        seq=17,
        timer_at=frozen.at + HOUR_MS * MS,
        hint_seq=17,
        hint_at=frozen.at - 4_000 * MS,
        hint_attempts=2,
    )

    page = page_of(admin_client)

    assert "Due in 1 h: a durable timer." in page
    assert (frozen.at + HOUR_MS * MS).strftime("%Y-%m-%d %H:%M:%S UTC") in page
    assert ">17</div>" in page
    assert (frozen.at - 4_000 * MS).strftime("%Y-%m-%d %H:%M:%S UTC") in page
    assert "slot 17, attempt 2" in page


def test_the_page_shows_the_last_report_the_last_error_and_the_help_of_the_fields(admin_client: Client) -> None:
    make_row(4, 3, slot_ms=0, last_report={"phase": "actionable", "settled": 2}, last_error="a sink failed")

    page = page_of(admin_client)

    assert "phase: actionable, settled: 2" in page
    assert "a sink failed" in page
    assert "Newest generation that a pass acknowledged." in page


def test_the_page_shows_what_happened_to_this_thread_and_leads_there(admin_client: Client, frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=0)
    ran = make_pass("t", frozen, outcome="failed", error="the head attempt failed")
    other = make_pass("other", frozen)
    done = OperatorAction.objects.create(actor="bob", action="pause", thread_id="t", reason="a drill")
    lease = MutationLease.objects.create(
        token=uuid.uuid4(),
        thread_id="t",
        generation=4,
        label="charge card",
        owner="x",
        started_at=frozen.at,
        expires_at=frozen.at + MS,
    )

    page = page_of(admin_client)

    assert reverse("admin:wakeful_maintenance_passrun_change", args=[ran.pk]) in page
    assert reverse("admin:wakeful_maintenance_passrun_change", args=[other.pk]) not in page
    assert reverse("admin:wakeful_maintenance_operatoraction_change", args=[done.pk]) in page
    assert reverse("admin:wakeful_maintenance_mutationlease_change", args=[lease.pk]) in page
    assert "the head attempt failed" in page
    assert list_url("passrun", thread_id__exact="t") in page
    assert list_url("operatoraction", thread_id__exact="t") in page


def test_the_page_shows_the_newest_ten_passes(admin_client: Client, frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=0)
    runs = [make_pass("t", frozen) for _ in range(12)]

    page = page_of(admin_client)

    links = [reverse("admin:wakeful_maintenance_passrun_change", args=[run.pk]) for run in runs]
    assert [link in page for link in links] == [False] * 2 + [True] * 10


def test_the_page_offers_what_the_user_may_do_and_what_would_do_something(frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=0, paused_at=frozen.at)

    page = page_of(operator("pause_thread", "resume_thread"))

    assert "act/resume/?_selected_action=t" in page
    assert "act/pause/" not in page
    assert "act/wake/" not in page


@pytest.mark.parametrize("thread_id", ["order/42 ü", "a_b", "<script>alert(1)</script>", "50%", "x" * 255])
def test_any_thread_id_has_its_row_and_its_page(thread_id: str, admin_client: Client, frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=0, thread_id=thread_id)
    make_pass(thread_id, frozen)

    assert "act/pause/" in page_of(admin_client, thread_id)
    assert "<script>alert" not in page_of(admin_client, thread_id)
    assert "<script>alert" not in admin_client.get(list_url()).content.decode()
    assert "<script>alert" not in admin_client.get(list_url("passrun")).content.decode()


def test_a_thread_that_does_not_exist_leads_home_with_a_word(admin_client: Client) -> None:
    answer = admin_client.get(reverse("admin:wakeful_maintenance_threadmaintenance_change", args=["nobody"]))

    assert answer.status_code == 302
