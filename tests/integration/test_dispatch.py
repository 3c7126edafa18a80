"""From the slot to the broker: after the commit, bounded in time, never into the caller (alarm-host, 15.6)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import InterfaceError, OperationalError, transaction

from maintenance import dispatch, metrics, sweep, tasks
from maintenance.dispatch import Hint
from maintenance.gate import mutation
from maintenance.models import ThreadMaintenance
from tests.arrivals import raise_it
from tests.factories import make_row, row_of
from tests.logs import events
from tests.lossy_transport import URL, Network, broken_network
from tests.marks import maintenance_database
from tests.publishing import nobody_answers, nobody_listens, publishing_to, take_message
from tests.stubs import fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from maintenance.clock import FrozenClock
    from tests.stubs import Stage

pytestmark = maintenance_database

REFUSED = 0.25
"""Seconds that a refusing broker may cost the caller."""
SILENT = 2.5
"""Seconds that a silent broker may cost the caller."""


@pytest.fixture
def network(celery_app: Celery, frozen: FrozenClock) -> Iterator[Network]:
    """The app publishes to a broker that loses and doubles nothing and needs no time."""
    with broken_network(well(frozen)) as made, publishing_to(celery_app, URL):
        yield made


def well(frozen: FrozenClock) -> Network:
    return Network(seed=1, now=lambda: frozen.at, loses=0, doubles=0, delays=timedelta())


def seconds_of_mutations(count: int, *, breaking: bool = True) -> list[float]:
    """What each of so many mutations took, each of a thread of its own, since a kept slot is not sent again.

    Without `breaking` each of them tries the broker.
    """
    seconds = []
    for number in range(count):
        if not breaking:
            dispatch.close_breaker()
        began = time.monotonic()
        with mutation(f"t{number}"):
            pass
        seconds.append(time.monotonic() - began)
    return seconds


# --- What goes out ------------------------------------------------------------------------------


def test_a_due_slot_goes_out_without_an_eta(network: Network, celery_app: Celery, frozen: FrozenClock) -> None:
    with mutation("t"):
        pass

    message = take_message(celery_app)
    assert message is not None
    args, kwargs, headers = message
    assert (args, kwargs) == (["t", 1], {"v": 1, "trigger": "alarm", "hops": 0})
    assert (headers["task"], headers["eta"], headers["expires"]) == ("maintenance.run_pass", None, None)


def test_a_message_carries_no_time_limits(network: Network, celery_app: Celery) -> None:
    """A web process with other settings would decide how long a worker lets a pass run."""
    with mutation("t"):
        pass

    message = take_message(celery_app)
    assert message is not None
    assert message[2]["timelimit"] == [None, None]


def test_a_slot_ahead_goes_out_with_its_deadline_as_eta(
    network: Network, celery_app: Celery, frozen: FrozenClock
) -> None:
    with mutation("t", wake=False):
        pass

    message = take_message(celery_app)
    assert message is not None
    assert datetime.fromisoformat(message[2]["eta"]) == frozen.at + timedelta(milliseconds=50)


def test_an_early_message_goes_back_with_a_countdown_of_the_worker(
    network: Network, celery_app: Celery, frozen: FrozenClock
) -> None:
    """Relative to the worker's clock: an eta by the database's clock would come early again."""
    make_row(4, 3, 0, 5_000)
    began = datetime.now(UTC)

    tasks.run_pass("t", 1)

    message = take_message(celery_app)
    assert message is not None
    eta = datetime.fromisoformat(message[2]["eta"])
    assert began + timedelta(seconds=5) <= eta <= datetime.now(UTC) + timedelta(seconds=5)
    assert message[1]["hops"] == 1


def test_the_message_of_a_slot_runs_its_pass(
    stage: Stage, network: Network, celery_app: Celery, frozen: FrozenClock
) -> None:
    with mutation("t"):
        pass
    message = take_message(celery_app)
    assert message is not None

    tasks.run_pass(*message[0], **message[1])

    assert not row_of().is_dirty


def test_nothing_goes_out_before_the_commit(network: Network) -> None:
    with transaction.atomic():
        with mutation("t"):
            pass
        assert network.sent == 0

    assert network.sent == 1


# --- A broker that refuses or is silent ---------------------------------------------------------


@pytest.fixture
def _imported(celery_app: Celery) -> None:
    """The first publish to a kind of broker also imports its client: that is not what these cases measure."""
    with nobody_listens() as url, publishing_to(celery_app, url):
        dispatch.publish(Hint(thread_id="t", seq=1))
    dispatch.close_breaker()


@pytest.mark.usefixtures("_imported")
def test_l17_a_broker_that_refuses_costs_a_quarter_second_and_the_next_sweep_sends(
    celery_app: Celery, frozen: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The fastest of three counts: what it costs when the machine is not busy with others."""
    failures = metrics.dispatch_failures._value.get()
    with nobody_listens() as url, publishing_to(celery_app, url):
        assert min(seconds_of_mutations(3, breaking=False)) < REFUSED
    assert [row.hint_seq for row in ThreadMaintenance.objects.all()] == [None] * 3
    assert len(events(caplog, "alarm.publish_failed")) == 3
    assert metrics.dispatch_failures._value.get() == failures + 3

    dispatch.close_breaker()
    with broken_network(well(frozen)) as network, publishing_to(celery_app, URL):
        assert sweep.sweep() == 3
    assert network.sent == 3
    assert all(row.hint_seq == row.alarm_seq for row in ThreadMaintenance.objects.all())


@pytest.mark.usefixtures("_imported")
def test_l18_a_broker_that_never_answers_costs_two_and_a_half_seconds(celery_app: Celery, frozen: FrozenClock) -> None:
    with nobody_answers() as url, publishing_to(celery_app, url):
        assert seconds_of_mutations(1)[0] < SILENT

    assert (row_of("t0").dirty, row_of("t0").hint_seq) == (2, None)


@pytest.mark.usefixtures("_imported")
def test_c4_twenty_mutations_in_a_row_wait_for_a_silent_broker_once(celery_app: Celery, frozen: FrozenClock) -> None:
    """The breaker: after a failed publish the process does not try for a while, and the sweep delivers."""
    with nobody_answers() as url, publishing_to(celery_app, url):
        seconds = seconds_of_mutations(20)

    assert seconds[0] < SILENT
    assert sum(seconds[1:]) < SILENT
    assert ThreadMaintenance.objects.filter(dirty=2, hint_seq=None).count() == 20


@pytest.mark.usefixtures("_imported")
def test_c4_the_bound_holds_for_the_twentieth_publish_too(
    celery_app: Celery, frozen: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the client library remembers of the failures before, without the breaker's help."""
    with nobody_listens() as url, publishing_to(celery_app, url):
        seconds = seconds_of_mutations(20, breaking=False)

    assert len(events(caplog, "alarm.publish_failed")) == 20
    assert min(seconds[17:]) < REFUSED


def test_the_breaker_lets_the_process_publish_again_after_its_time(
    network: Network, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(dispatch, "send", fail)
        assert dispatch.publish(Hint(thread_id="t", seq=1)) is False
    assert dispatch.publish(Hint(thread_id="t", seq=1)) is False
    assert network.sent == 0

    later = time.monotonic() + dispatch.BREAKER_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert dispatch.publish(Hint(thread_id="t", seq=1)) is True
    assert network.sent == 1


# --- Nothing reaches the caller -----------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectionRefusedError, OperationalError, MemoryError, AssertionError])
def test_l19_a_publish_that_raises_fails_nobody_and_the_hooks_after_it_run(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(dispatch, "send", lambda _: raise_it(error()))
    ran: list[str] = []

    with transaction.atomic():
        with mutation("t"):
            pass
        transaction.on_commit(lambda: ran.append("the application's own hook"))

    assert ran == ["the application's own hook"]
    assert row_of().hint_seq is None


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_l19_an_unmarking_that_fails_too_fails_nobody(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    """The broker and then the database: what is left is the grace of the sweep."""
    monkeypatch.setattr(dispatch, "send", fail)
    make_row(4, 3, 0, 0, hint_seq=1)
    monkeypatch.setattr(ThreadMaintenance.objects, "filter", lambda **_: raise_it(error()))

    dispatch.publish_or_forget(Hint(thread_id="t", seq=1))

    assert len(events(caplog, "alarm.unmark_failed")) == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_while_publishing_reaches_the_caller_of_a_committed_mutation(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    monkeypatch.setattr(dispatch, "send", lambda _: raise_it(interruption()))

    with pytest.raises(interruption), mutation("t"):
        pass

    assert row_of().is_dirty


def test_the_text_of_a_brokers_error_is_not_logged(
    frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may name the password of the broker's URL."""
    monkeypatch.setattr(dispatch, "send", fail)

    with mutation("t"):
        pass

    (told,) = events(caplog, "alarm.publish_failed")
    assert told["kind"] == "Broken"
    assert "secret detail" not in caplog.text
