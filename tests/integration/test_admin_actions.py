"""Actions of the thread admin: permission, intermediate page, reason, audit (alarm-host R-09; field report Q2)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.urls import reverse
from django.utils.http import urlencode

from maintenance.admin import threads as thread_admin
from maintenance.admin.reasoned import MOST_AT_ONCE
from maintenance.models import OperatorAction, ThreadMaintenance
from tests.factories import live_lease, make_row, numbers, row_of
from tests.operators import lose, operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.test import Client

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen", "sent", "stage")]

PERMISSIONS = {
    "force_pass": "force_pass",
    "wake": "wake_thread",
    "pause": "pause_thread",
    "resume": "resume_thread",
    "release": "release_thread",
}
CHANGELIST = "admin:wakeful_maintenance_threadmaintenance_changelist"


def act_url(action: str) -> str:
    return reverse("admin:wakeful_maintenance_threadmaintenance_act", args=[action])


def act(client: Client, action: str, threads: Sequence[str], **data: str) -> Any:
    """Sends the filled-in intermediate page."""
    return client.post(act_url(action), {"_selected_action": threads, **data})


def choose(client: Client, action: str, threads: Sequence[str], query: str = "", **data: str) -> Any:
    """Chooses the action in the list, which leads to the intermediate page."""
    form = {"action": action, "_selected_action": threads, "index": "0", **data}
    return client.post(reverse(CHANGELIST) + query, form)


def said(response: Any) -> list[str]:
    """The messages that the next page shows."""
    return [str(message) for message in response.wsgi_request._messages]


def in_state_for(action: str, now: datetime, thread_id: str = "t") -> None:
    columns: dict[str, dict[str, Any]] = {
        "resume": {"paused_at": now},
        "release": {"quarantined_at": now, "quarantine_reason": "worker lost", "starts_since_finish": 20},
    }
    make_row(4, 3, slot_ms=60_000, thread_id=thread_id, **columns.get(action, {}))


# --- Permission ---------------------------------------------------------------------------------


@pytest.mark.parametrize("action", PERMISSIONS)
def test_r09_without_its_permission_an_action_is_not_offered_and_not_done(action: str, frozen: FrozenClock) -> None:
    in_state_for(action, frozen.at)
    others = [codename for name, codename in PERMISSIONS.items() if name != action]
    client = operator(*others)
    before = row_of()

    page = client.get(reverse(CHANGELIST))

    assert f'value="{action}"' not in page.content.decode()
    assert client.get(act_url(action), {"_selected_action": "t"}).status_code == 403
    assert act(client, action, ["t"], reason="a drill").status_code == 403
    assert (row_of().alarm_seq, row_of().paused_at) == (before.alarm_seq, before.paused_at)
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("action", PERMISSIONS)
def test_with_its_permission_alone_an_action_is_offered(action: str, frozen: FrozenClock) -> None:
    in_state_for(action, frozen.at)

    page = operator(PERMISSIONS[action]).get(reverse(CHANGELIST)).content.decode()

    assert {name for name in PERMISSIONS if f'value="{name}"' in page} == {action}


def test_the_permission_to_act_without_the_one_to_look_is_not_enough(frozen: FrozenClock) -> None:
    in_state_for("pause", frozen.at)
    client = operator("pause_thread")
    lose(client, "view_threadmaintenance")

    assert act(client, "pause", ["t"], reason="a drill").status_code == 403
    assert row_of().paused_at is None


def test_nobody_acts_without_logging_in(client: Client, frozen: FrozenClock) -> None:
    in_state_for("pause", frozen.at)

    answer = act(client, "pause", ["t"], reason="a drill")

    assert answer.status_code == 302
    assert "/login/" in answer["Location"]
    assert row_of().paused_at is None


def test_an_action_that_does_not_exist_is_not_found(admin_client: Client) -> None:
    assert admin_client.get(act_url("dance")).status_code == 404


# --- The page between wish and deed -------------------------------------------------------------


@pytest.mark.parametrize("action", thread_admin.ThreadMaintenanceAdmin.reasoned_actions, ids=lambda each: each.name)
def test_choosing_an_action_only_shows_what_will_happen(action: Any, frozen: FrozenClock) -> None:
    in_state_for(action.name, frozen.at)
    before = ThreadMaintenance.objects.values().get()

    page = choose(operator(PERMISSIONS[action.name]), action.name, ["t"])

    assert page.status_code == 200
    assert action.explanation in page.content.decode()
    assert page.context["form"].fields["reason"].required
    assert ThreadMaintenance.objects.values().get() == before


def test_the_page_names_ten_threads_and_counts_the_rest(admin_client: Client) -> None:
    names = [f"t{number:02}" for number in range(13)]
    for name in names:
        make_row(3, 3, thread_id=name)

    page = choose(admin_client, "pause", names).content.decode()

    assert page.count('name="_selected_action"') == 13
    assert "Chosen: 13" in page
    assert "and 3 more" in page
    assert page.count('/change/">t') == 10


@pytest.mark.parametrize("reason", ["", "   ", None])
def test_r09_without_a_reason_nothing_is_done_and_the_page_comes_back(reason: str | None, frozen: FrozenClock) -> None:
    in_state_for("pause", frozen.at)
    data = {} if reason is None else {"reason": reason}

    page = act(operator("pause_thread"), "pause", ["t"], **data)

    assert page.status_code == 200
    assert page.context["form"].errors["reason"]
    assert [obj.pk for obj in page.context["objects"]] == ["t"]
    assert row_of().paused_at is None
    assert not OperatorAction.objects.exists()


def test_acting_on_nothing_leads_back_with_a_word(admin_client: Client) -> None:
    answer = act(admin_client, "pause", [], reason="a drill")
    assert answer.status_code == 302

    answer = admin_client.get(act_url("pause"))
    assert said(answer) == [f"Choose at least one and at most {MOST_AT_ONCE}; the management command takes more."]


# --- The deed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", PERMISSIONS)
def test_r09_with_a_reason_it_is_done_and_kept_in_both_logs(action: str, frozen: FrozenClock) -> None:
    in_state_for(action, frozen.at)

    answer = act(operator(PERMISSIONS[action]), action, ["t"], reason="a customer called")

    done, entry = OperatorAction.objects.get(), LogEntry.objects.get()
    assert answer.status_code == 302
    assert said(answer)[0].endswith("done for t.")
    assert (done.action, done.thread_id, done.actor, done.reason) == (action, "t", "ann", "a customer called")
    assert done.before != done.after
    assert (entry.object_id, entry.user.get_username()) == ("t", "ann")
    assert "a customer called" in entry.change_message


def test_a_forced_pass_is_a_row_write_and_never_a_pass_in_the_web_process(
    stage: Stage, frozen: FrozenClock, sent: list[Hint], django_capture_on_commit_callbacks: Any
) -> None:
    make_row(4, 3, slot_ms=60_000)
    client = operator("force_pass")

    with django_capture_on_commit_callbacks(execute=True):
        act(client, "force_pass", ["t"], reason="now, please")

    assert numbers(frozen.at) == (4, 3, 0, 0)
    assert [hint.thread_id for hint in sent] == ["t"]
    assert stage.calls == []
    assert row_of().lease_epoch == 0


def test_r09_repeating_is_idempotent_and_said(frozen: FrozenClock) -> None:
    in_state_for("pause", frozen.at)
    client = operator("pause_thread")
    act(client, "pause", ["t"], reason="a drill")

    answer = act(client, "pause", ["t"], reason="a drill")

    assert said(answer) == ["Pause: done for t.", "t paused already: nothing changed."]
    assert row_of().paused_at == frozen.at


def test_q2_each_thread_is_reported_and_none_stops_the_others(frozen: FrozenClock) -> None:
    make_row(4, 3, slot_ms=60_000, thread_id="a")
    make_row(4, 3, slot_ms=60_000, thread_id="held", **live_lease())
    make_row(4, 3, slot_ms=60_000, thread_id="future", schema_version=2)
    make_row(4, 3, slot_ms=60_000, thread_id="z")

    answer = act(operator("wake_thread"), "wake", ["a", "held", "future", "gone", "z"], reason="a look")

    done, left, failed, missing = said(answer)
    assert done == "Wake: done for a, z."
    assert left.startswith("held left alone: a pass holds the thread")
    assert failed.startswith("Wake failed for future: ")
    assert missing == "1 of the chosen no longer exist."
    assert numbers(frozen.at, "z") == (4, 3, 0, 0)
    assert not OperatorAction.objects.filter(thread_id="future").exists()


def test_q2_three_hundred_threads_in_all_states_are_acted_on_at_once(admin_client: Client, frozen: FrozenClock) -> None:
    states: list[dict[str, Any]] = [{}, {"paused_at": frozen.at}, {"quarantined_at": frozen.at}]
    names = [f"t{number:03}" for number in range(300)]
    for number, name in enumerate(names):
        make_row(4, 3, slot_ms=-1_000, thread_id=name, **states[number % 3])

    answer = act(admin_client, "resume", names, reason="over")

    assert "and 90 more" in said(answer)[0]
    assert not ThreadMaintenance.objects.filter(paused_at__isnull=False).exists()


def test_more_threads_than_a_page_can_end_with_are_refused(admin_client: Client, frozen: FrozenClock) -> None:
    ThreadMaintenance.objects.bulk_create(
        ThreadMaintenance(thread_id=f"t{number}", dirty=3, processed=3) for number in range(MOST_AT_ONCE + 1)
    )

    answer = choose(admin_client, "pause", ["t1"], select_across="1")

    assert answer.status_code == 302
    assert "at most 500" in said(answer)[0]
    assert not ThreadMaintenance.objects.filter(paused_at__isnull=False).exists()


def test_the_deed_and_its_entry_in_djangos_log_stand_or_fall_together(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_state_for("pause", frozen.at)

    def fail(*_: object) -> None:
        raise OperationalError("password=swordfish")

    monkeypatch.setattr(thread_admin.ThreadMaintenanceAdmin, "log_change", fail)
    answer = act(operator("pause_thread"), "pause", ["t"], reason="a drill")

    assert said(answer)[0].startswith("Pause failed for t: ")
    assert "swordfish" not in said(answer)[0]
    assert row_of().paused_at is None
    assert not OperatorAction.objects.exists()


# --- The way back -------------------------------------------------------------------------------


def test_acting_from_a_filtered_list_leads_back_to_it(frozen: FrozenClock) -> None:
    in_state_for("resume", frozen.at)
    client = operator("resume_thread")

    page = choose(client, "resume", ["t"], query="?condition=paused")
    answer = act(client, "resume", ["t"], reason="over", _filters=page.context["filters"])

    assert answer["Location"] == reverse(CHANGELIST) + "?condition=paused"


def test_acting_from_the_page_of_a_thread_leads_back_to_it(frozen: FrozenClock) -> None:
    name = "order/42 <ü>"
    in_state_for("pause", frozen.at, name)
    client = operator("pause_thread")

    page = client.get(act_url("pause") + "?" + urlencode({"_selected_action": name}))
    answer = act(client, "pause", [name], reason="a drill", _filters=page.context["filters"])

    assert row_of(name).paused_at == frozen.at
    assert client.get(answer["Location"]).context["original"].pk == name


def test_a_filter_never_leads_to_another_site(frozen: FrozenClock) -> None:
    in_state_for("pause", frozen.at)

    answer = act(operator("pause_thread"), "pause", ["t"], reason="a drill", _filters="//evil.example/")

    assert answer["Location"].startswith(reverse(CHANGELIST) + "?")
