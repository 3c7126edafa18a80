"""Spans of OpenTelemetry: what they tell, what they link to, and that they change nothing (F-30, S-03, S-06)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import transaction
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode

from maintenance import dispatch, spans, sweep, tasks
from maintenance.ensure import ensure_alarm
from maintenance.errors import PassFailed
from maintenance.gate import mutation, prearmed_mutation
from maintenance.history import Report
from maintenance.models import PassRun
from tests.arrivals import raise_it
from tests.factories import make_row, row_of
from tests.jobs import table_of_jobs
from tests.marks import maintenance_database
from tests.publishing import publishing_to, take_message
from tests.stubs import fail
from tests.tracing import Collected, collected_spans, context_of, told

if TYPE_CHECKING:
    from celery import Celery

    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from tests.stubs import Stage

pytestmark = maintenance_database


@pytest.fixture
def collected() -> Iterator[Collected]:
    with collected_spans() as made:
        yield made


def is_linked(span: ReadableSpan, cause: ReadableSpan) -> bool:
    return [link.context.span_id for link in span.links] == [context_of(cause).span_id]


def run_message(hint: Hint) -> str:
    """Runs the task with the message of a hint, as a worker does."""
    return str(tasks.run_pass(hint.thread_id, hint.seq, **dispatch._message(hint)))


# --- What maintenance tells ---------------------------------------------------------------------


def test_s03_a_mutation_its_hint_and_a_sweep_have_spans(
    collected: Collected, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    with mutation("t"):
        pass
    make_row(2, 1, 0, 0, thread_id="late")
    sweep.sweep()
    ensure_alarm("t")

    assert told(collected.one("maintenance.mutation")) == {"thread": "t", "mode": "atomic", "generation": 4}
    by_mutation, by_sweep = collected.named("maintenance.dispatch")
    assert told(by_mutation) == {"thread": "t", "seq": 2, "trigger": "alarm"}
    assert told(by_sweep) == {"thread": "late", "seq": 1, "trigger": "sweep"}
    assert told(collected.one("maintenance.sweep")) == {"claimed": 1, "published": 1}
    assert told(collected.one("maintenance.ensure_alarm")) == {"thread": "t"}


def test_s03_a_sweep_that_finds_nothing_has_no_span(collected: Collected, frozen: FrozenClock) -> None:
    sweep.sweep()

    assert collected.all() == []


def test_s03_the_span_of_a_pre_armed_mutation_covers_its_body(
    collected: Collected, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    with prearmed_mutation("t", "charge"):
        assert trace.get_current_span().is_recording()

    span = collected.one("maintenance.mutation")
    assert told(span) == {"thread": "t", "mode": "prearmed", "label": "charge", "generation": 4}
    assert span.status.status_code is StatusCode.UNSET


def test_a_body_that_raises_marks_its_span_and_tells_the_kind_alone(collected: Collected, frozen: FrozenClock) -> None:
    make_row(3, 3)
    with pytest.raises(ValueError, match="4242"), mutation("t"):
        raise_it(ValueError("the customer's card is 4242"))

    span = collected.one("maintenance.mutation")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
    assert span.events == ()
    assert "4242" not in span.to_json()


def test_a_hint_that_the_broker_refuses_marks_its_span(
    collected: Collected, frozen: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "send", fail)
    with mutation("t"):
        pass

    assert collected.one("maintenance.dispatch").status.description == "Broken"
    assert collected.one("maintenance.mutation").status.status_code is StatusCode.UNSET


# --- A pass -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dirty", "phase"), [(4, "actionable"), (3, "caught-up")])
def test_f30_the_span_of_a_pass_tells_its_report(
    collected: Collected, stage: Stage, frozen: FrozenClock, dirty: int, phase: str
) -> None:
    make_row(dirty, 3, 2, -70)

    tasks.run_pass("t", 1)

    run = PassRun.objects.get()
    span = told(collected.one("maintenance.pass"))
    report = {name: span.pop(name) for name in Report.__dataclass_fields__}
    assert report["phase"] == phase
    assert report == {name: getattr(run, name) for name in report} == row_of().last_report
    assert span == {"thread": "t", "seq": 1, "trigger": "alarm", "outcome": "ran", "lateness_ms": 70}


def test_f30_a_caught_up_pass_that_drains_a_sink_tells_its_report_too(
    collected: Collected, stage: Stage, frozen: FrozenClock
) -> None:
    stage.sink.inert = False
    stage.sink.deadline = frozen.at
    make_row(3, 3, 2, 0)

    tasks.run_pass("t", 1)

    report, span = row_of().last_report, told(collected.one("maintenance.pass"))
    assert report is not None
    assert {name: span[name] for name in Report.__dataclass_fields__} == {
        name: report[name] for name in Report.__dataclass_fields__
    }
    assert (span["phase"], span["alarm"]) == ("caught-up", "rearmed")


def test_s03_a_message_that_is_refused_has_a_span_with_its_outcome_and_no_report(
    collected: Collected, frozen: FrozenClock
) -> None:
    make_row(4, 3, 0, 0)

    tasks.run_pass("t", 7, trigger="sweep")

    expected = {"thread": "t", "seq": 7, "trigger": "sweep", "outcome": "superseded"}
    assert told(collected.one("maintenance.pass")) == expected


def test_r15_a_pass_that_fails_marks_its_span_without_the_text_of_the_error(
    collected: Collected, stage: Stage, frozen: FrozenClock
) -> None:
    stage.runtime.on_head = fail
    make_row(4, 3, 0, 0)
    with pytest.raises(PassFailed):
        tasks.run_pass("t", 1)

    span = collected.one("maintenance.pass")
    assert (span.status.status_code, told(span)["outcome"]) == (StatusCode.ERROR, "failed")
    assert "secret" not in span.to_json()


# --- Links --------------------------------------------------------------------------------------


def test_s06_a_pass_links_to_the_mutation_that_set_the_slot_and_is_not_its_child(
    collected: Collected, stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(3, 3)
    with mutation("t"):
        pass
    run_message(sent[0])

    mutated, passed = collected.one("maintenance.mutation"), collected.one("maintenance.pass")
    assert is_linked(passed, mutated)
    assert passed.parent is None
    assert context_of(passed).trace_id != context_of(mutated).trace_id


def test_s06_inside_a_transaction_of_the_caller_the_link_is_to_the_mutation_all_the_same(
    collected: Collected, stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    """Its hint leaves after the outer commit, when the mutation's span has ended."""
    make_row(3, 3)
    with transaction.atomic(), mutation("t"):
        pass
    run_message(sent[0])

    assert is_linked(collected.one("maintenance.pass"), collected.one("maintenance.mutation"))


def test_s06_a_pass_that_a_sweep_brought_links_to_the_sweep(
    collected: Collected, stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    make_row(4, 3, 0, 0)
    sweep.sweep()
    run_message(sent[0])

    assert is_linked(collected.one("maintenance.pass"), collected.one("maintenance.sweep"))


def test_a_pass_in_place_links_to_the_pass_before_it(collected: Collected, frozen: FrozenClock) -> None:
    with table_of_jobs() as jobs:
        with transaction.atomic():
            jobs.submit(1)
            jobs.submit(2)
        tasks.run_pass("t", 1)
        assert jobs.settled() == {1: 1, 2: 1}

    first, second = collected.named("maintenance.pass")
    assert is_linked(second, first)
    assert told(second)["trigger"] == "in-place"
    assert "lateness_ms" in told(first)
    assert "lateness_ms" in told(second)


def test_s06_the_trace_context_travels_in_the_message(
    collected: Collected, frozen: FrozenClock, celery_app: Celery
) -> None:
    with publishing_to(celery_app, "memory://"):
        with mutation("t"):
            pass
        message = take_message(celery_app)

    assert message is not None
    context = context_of(collected.one("maintenance.mutation"))
    assert message[1]["trace"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@pytest.mark.parametrize("context", ["", "nonsense", "00-0-0-00", "x" * 10_000, 7, None, {"a": 1}])
def test_a_message_whose_trace_context_says_nothing_runs_all_the_same(
    collected: Collected, stage: Stage, frozen: FrozenClock, context: object
) -> None:
    make_row(4, 3, 0, 0)

    assert tasks.run_pass("t", 1, trace=context) == "ran"
    assert collected.one("maintenance.pass").links == ()


# --- They change nothing ------------------------------------------------------------------------


def test_without_a_provider_a_message_carries_no_trace_and_nothing_is_opened(
    frozen: FrozenClock, sent: list[Hint]
) -> None:
    with mutation("t"):
        pass

    assert "trace" not in dispatch._message(sent[0])
    assert spans.span("maintenance.pass") is spans.span("maintenance.mutation")


class Hostile(SpanProcessor):
    """A processor whose exporter is down and says so in the worst place."""

    def on_start(self, span: object, parent_context: object = None) -> None:
        fail()

    def on_end(self, span: ReadableSpan) -> None:
        fail()


def test_k14_s02_a_collector_that_raises_changes_no_outcome(
    stage: Stage, frozen: FrozenClock, sent: list[Hint]
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Hostile())
    with spans.collected_by(provider):
        with mutation("t"):
            pass
        assert run_message(sent[0]) == "ran"

    assert not row_of().is_dirty


class Interrupted(SpanProcessor):
    """Celery's soft limit strikes while a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        raise SoftTimeLimitExceeded


def test_an_interruption_while_a_span_ends_is_not_swallowed() -> None:
    provider = TracerProvider()
    provider.add_span_processor(Interrupted())
    with spans.collected_by(provider), pytest.raises(SoftTimeLimitExceeded), spans.span("maintenance.sweep"):
        pass


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from maintenance import spans
assert not spans.INSTALLED
with spans.span("maintenance.pass", thread="t") as span:
    span.note(outcome="ran")
assert spans.here() is None
"""
WITH_A_PROVIDER_OF_THE_HOST = """
from maintenance import spans
assert spans.here() is None and not spans.span("a").is_kept
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
spans._look_at = 0.0  # as if a second had gone by
with spans.span("a") as span:
    assert span.is_kept and spans.here()
"""


@pytest.mark.parametrize("program", [WITHOUT, WITH_A_PROVIDER_OF_THE_HOST], ids=["not-installed", "provider-set-late"])
def test_spans_are_there_when_the_host_has_what_they_need(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)
