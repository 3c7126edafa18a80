"""Ids that no thread can have: not found wherever they come from, never a question that the database refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.core.management import CommandError
from django.test import Client

from agents import api
from agents.errors import UnknownThread
from maintenance import api as engine
from maintenance.errors import DurableAlarmError
from tests.commands import agents, maintenance

pytestmark = pytest.mark.django_db

NUL = "a\x00b"
HALF = "a\ud800"
"""Half of a surrogate pair: what a command line makes of bytes that are no text."""
IMPOSSIBLE = pytest.mark.parametrize("thread_id", [NUL, HALF, "", "x" * 256], ids=["nul", "half", "empty", "long"])

ASKED: dict[str, Callable[[str], object]] = {
    "explain": api.explain_thread,
    "export": api.export,
    "force a pass": lambda thread_id: api.force_pass(thread_id, reason="r"),
    "obligations": lambda thread_id: api.obligations(thread_id=thread_id),
    "progress": api.progress,
    "send an event": lambda thread_id: api.send_event(thread_id, "paid"),
    "show": api.show,
    "verify": api.verify,
    "wake": lambda thread_id: api.wake(thread_id, reason="r"),
}

PAGES = [
    "wakeful_maintenance/threadmaintenance/a%00b/change/",
    "wakeful_maintenance/threadmaintenance/a%00b/history/",
    "wakeful_agents/thread/a%00b/change/",
    "wakeful_agents/thread/a%00b/history/",
    "wakeful_maintenance/passrun/?thread_id__exact=a%00b",
    "wakeful_maintenance/threadmaintenance/?thread_id__exact=a%00b",
]

CHOSEN = [
    "wakeful_maintenance/threadmaintenance/act/wake/?_selected_action=a%00b",
    "wakeful_agents/submission/act/abort/?_selected_action=a%00b",
    "wakeful_agents/submission/act/abort/?_selected_action=no-uuid",
]


@IMPOSSIBLE
@pytest.mark.parametrize("asked", ASKED)
def test_the_api_knows_no_such_thread(asked: str, thread_id: str) -> None:
    with pytest.raises(UnknownThread, match="there is no thread"):
        ASKED[asked](thread_id)


@pytest.mark.parametrize("call", [engine.wake, engine.ensure_alarm, engine.cancel, engine.scheduled])
def test_the_engine_refuses_half_a_character_with_an_error_of_its_own(call: Callable[[str], object]) -> None:
    with pytest.raises(DurableAlarmError, match="half of a surrogate pair"):
        call(HALF)


@pytest.mark.parametrize("url", PAGES)
def test_a_page_of_the_admin_is_not_found(admin_client: Client, url: str) -> None:
    assert admin_client.get(f"/admin/{url}").status_code == 404


@pytest.mark.parametrize("url", CHOSEN)
def test_an_action_on_what_cannot_exist_leads_back_to_the_list(admin_client: Client, url: str) -> None:
    answer = admin_client.get(f"/admin/{url}")

    assert answer.status_code == 302
    assert answer["Location"].endswith(url.partition("act/")[0])


@IMPOSSIBLE
@pytest.mark.parametrize("words", ["pass", "status", "ensure", "wake --reason r", "pause --reason r"])
def test_the_maintenance_command_refuses_the_argument(words: str, thread_id: str) -> None:
    verb, *options = words.split()

    with pytest.raises(CommandError, match="cannot be the id of a thread"):
        maintenance(verb, thread_id, *options)


@pytest.mark.parametrize("words", ["show", "explain", "verify", "export"])
def test_the_agents_command_knows_no_such_thread(words: str) -> None:
    ran = agents(words, HALF)

    assert "there is no thread" in (ran.out + ran.err).lower()
    assert ran.code == 2
