"""Passes, operator actions, mutations and workers in the admin: linked to their thread, cheap to list."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse

from maintenance.models import MutationLease, OperatorAction, PassRun, WorkerHeartbeat
from tests.factories import MS

if TYPE_CHECKING:
    from django.db.models import Model
    from django.test import Client

    from maintenance.clock import FrozenClock

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen")]


def make_pass(frozen: FrozenClock, thread_id: str = "t", **columns: Any) -> PassRun:
    values = {
        "epoch": 1,
        "trigger": "alarm",
        "outcome": "ran",
        "phase": "actionable",
        "owner": "boot:1:4711:9",
        "due_at": frozen.at - 250 * MS,
        "started_at": frozen.at,
        "finished_at": frozen.at + 37 * MS,
        **columns,
    }
    return PassRun.objects.create(thread_id=thread_id, **values)


def listed(client: Client, model: str, query: str = "") -> list[Any]:
    url = reverse(f"admin:wakeful_maintenance_{model}_changelist")
    return list(client.get(url + query).context["cl"].result_list)


def page_of(client: Client, obj: Model) -> str:
    url = reverse(f"admin:wakeful_maintenance_{obj._meta.model_name}_change", args=[obj.pk])
    return client.get(url).content.decode()


def thread_page(thread_id: str) -> str:
    return reverse("admin:wakeful_maintenance_threadmaintenance_change", args=[thread_id])


def test_passes_are_listed_newest_first(admin_client: Client, frozen: FrozenClock) -> None:
    runs = [make_pass(frozen) for _ in range(3)]

    assert listed(admin_client, "passrun") == runs[::-1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?outcome=failed", ["failed"]),
        ("?phase=caught-up", ["caught-up"]),
        ("?outcome=ran&phase=actionable", ["plain"]),
        ("?outcome=nonsense", ["caught-up", "failed", "plain"]),
        ("?q=plain", ["plain"]),
        ("?q=plai", []),
        ("?thread_id__exact=failed", ["failed"]),
    ],
)
def test_passes_are_filtered_and_found(
    query: str, expected: list[str], admin_client: Client, frozen: FrozenClock
) -> None:
    make_pass(frozen, "plain")
    make_pass(frozen, "failed", outcome="failed", phase="")
    make_pass(frozen, "caught-up", phase="caught-up")

    assert sorted(run.thread_id for run in listed(admin_client, "passrun", query)) == expected


def test_a_pass_tells_how_late_it_was_how_long_it_took_and_where(admin_client: Client, frozen: FrozenClock) -> None:
    page = page_of(admin_client, make_pass(frozen, error="the head attempt failed"))

    assert "250 ms" in page
    assert "37 ms" in page
    assert "pid 4711 on boot" in page
    assert "the head attempt failed" in page
    assert thread_page("t") in page
    assert "The deadline that this pass answered." in page


def test_an_operator_action_tells_who_why_and_what_changed(admin_client: Client) -> None:
    done = OperatorAction.objects.create(
        actor="ann",
        action="pause",
        thread_id="t",
        reason="a <b>drill</b>",
        before={"paused_at": None},
        after={"paused_at": "noon"},
    )

    page = page_of(admin_client, done)

    assert "a &lt;b&gt;drill&lt;/b&gt;" in page
    assert "paused at: None" in page
    assert "paused at: noon" in page
    assert thread_page("t") in page


@pytest.mark.parametrize(
    ("query", "expected"), [("?action=wake", ["b"]), ("?q=ann", ["a"]), ("?q=b", ["b"]), ("", ["a", "b"])]
)
def test_operator_actions_are_filtered_by_kind_and_found_by_actor_or_thread(
    query: str, expected: list[str], admin_client: Client
) -> None:
    OperatorAction.objects.create(actor="ann", action="pause", thread_id="a", reason="x")
    OperatorAction.objects.create(actor="bob", action="wake", thread_id="b", reason="x")

    assert sorted(done.thread_id for done in listed(admin_client, "operatoraction", query)) == expected


def test_a_failover_belongs_to_every_thread_and_links_to_none(admin_client: Client) -> None:
    done = OperatorAction.objects.create(actor="ann", action="after_failover", thread_id="*", reason="x")

    assert "every thread" in page_of(admin_client, done)
    assert thread_page("*") not in page_of(admin_client, done)


def test_a_mutation_in_flight_tells_its_thread_and_when_it_expires(admin_client: Client, frozen: FrozenClock) -> None:
    lease = MutationLease.objects.create(
        token=uuid.uuid4(),
        thread_id="t",
        generation=4,
        label="charge card",
        owner="boot:1:4711:9",
        started_at=frozen.at,
        expires_at=frozen.at + 60_000 * MS,
    )
    url = reverse("admin:wakeful_maintenance_mutationlease_changelist")

    page = admin_client.get(url).content.decode()

    assert ">in 1 min</time>" in page
    assert thread_page("t") in page
    assert "charge card" in page_of(admin_client, lease)


def test_a_worker_that_was_not_seen_for_three_heartbeats_is_taken_for_gone(
    admin_client: Client, frozen: FrozenClock
) -> None:
    for name, seconds in (("alive", 30), ("gone", 31)):
        seen = frozen.at - timedelta(seconds=seconds)
        WorkerHeartbeat.objects.create(worker=name, seen_at=seen, started_at=seen)

    page = admin_client.get(reverse("admin:wakeful_maintenance_workerheartbeat_changelist")).content.decode()

    assert page.index("alive") < page.index("gone")
    assert page.count("icon-yes") == page.count("icon-no") == 1
