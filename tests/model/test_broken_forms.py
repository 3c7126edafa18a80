"""Every broken form of the protocol is caught: by the schedules, or by a story that the right form tells well.

The right form of each schedule is in the matrix; the right form of each story is told beside its broken one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from maintenance import alarm, begin, finish, gate, hooks, lease
from maintenance.delivery import Begun, Delivery
from maintenance.errors import OwnershipLost
from maintenance.finish import Done
from maintenance.models import ThreadMaintenance
from maintenance.testing import run_due_passes
from tests.model import ledger, variants
from tests.model.invariants import Watched, at_rest, look, violations
from tests.model.ledger import JobLedger, JobRuntime, Outbox, Sink, job_hooks
from tests.model.matrix import FURTHER_MEETINGS, REQUIRED_MEETINGS, broken_schedules
from tests.model.variants import GenerationSink, Variant

if TYPE_CHECKING:
    from maintenance.clock import FrozenClock
    from maintenance.dispatch import Hint
    from maintenance.lease import Lease
    from tests.model.schedule import Stage

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("transactional_db")]

THREAD = "t"

SCHEDULES = {
    "acknowledging the current generation": (
        variants.acknowledging_the_current_generation,
        ("live", "finish", "answer"),
        "can go on, the row is clean",
    ),
    "publishing before commit": (
        variants.publishing_before_commit,
        ("new", "mutation", "begin"),
        "a hint for slot 1 went out while None was committed",
    ),
    "a fence that does not lock": (
        variants.fencing_with_a_plain_select,
        ("expired", "append", "begin"),
        "a pass wrote after another one had taken over",
    ),
    "a fused begin that trusts its head": (
        variants.trusting_the_head_that_the_lock_statement_read,
        ("hollow", "mutation", "begin"),
        "can go on, the row is clean",
    ),
    "clearing without a scan": (
        variants.clearing_without_a_scan,
        ("due", "mutation", "pass"),
        "can go on, the row is clean",
    ),
    "a scan before the row lock": (
        variants.scanning_before_the_lock,
        ("live", "finish", "mutation"),
        "the scan began while its transaction did not hold the row",
    ),
    "a scan before the row lock, and the current generation": (
        variants.scanning_early_and_acknowledging_the_current_generation,
        ("live", "finish", "mutation"),
        "can go on, the row is clean",
    ),
}


@pytest.mark.postgres
@pytest.mark.parametrize("broken", SCHEDULES)
def test_the_schedules_catch(actors: Stage, broken: str) -> None:
    variant, meeting, words = SCHEDULES[broken]
    assert meeting in [*REQUIRED_MEETINGS, *FURTHER_MEETINGS], "the right form of this schedule is not tried"
    with variant():
        assert words in "\n".join(broken_schedules(actors, *meeting))


@dataclass
class Parts:
    """The ports of a story; one of them may be the broken one."""

    runtime: JobRuntime = field(default_factory=JobRuntime)
    ledger: JobLedger = field(default_factory=partial(JobLedger, trusts_states=True))
    outbox: Outbox = field(default_factory=Outbox)
    sink: Sink = field(default_factory=Sink)


@dataclass
class Story:
    """What happens to one thread while time goes on."""

    frozen: FrozenClock

    def pass_time(self, seconds: float) -> None:
        self.frozen.at += timedelta(seconds=seconds)
        run_due_passes()


Told = Callable[[Story], None]


def _a_timer_comes(story: Story) -> None:
    with gate.mutation(THREAD) as made:
        ledger.add_job(THREAD, due_at=made.now + timedelta(seconds=10))
    story.pass_time(0)
    story.pass_time(10)
    story.pass_time(10)


def _somebody_wakes_a_thread_that_waits_for_its_timer(story: Story) -> None:
    with gate.mutation(THREAD) as made:
        ledger.add_job(THREAD, due_at=made.now + timedelta(seconds=10))
    story.pass_time(0)
    alarm.schedule_now(THREAD)
    story.pass_time(1)
    story.pass_time(9)


def _a_reply_comes_with_the_wave_of_a_caught_up_pass(story: Story) -> None:
    with gate.mutation(THREAD) as made:
        job = ledger.add_job(THREAD, asks=True)
        ledger.Letter.objects.create(thread_id=THREAD, job_id=job.pk, due_at=made.now + timedelta(seconds=10))
    story.pass_time(0)
    story.pass_time(1)
    story.pass_time(9)
    story.pass_time(10)


def _the_answer_is_there_before_the_job_asks(story: Story) -> None:
    with gate.mutation(THREAD):
        ledger.add_job(THREAD, asks=True, answered=True)
    story.pass_time(0)
    story.pass_time(10)


def _a_job_settles_behind_the_first_drain_of_its_pass(story: Story) -> None:
    with gate.mutation(THREAD):
        ledger.add_job(THREAD)
    story.pass_time(0)
    story.pass_time(10)


def _a_prearmed_mutation_outlives_its_lease(story: Story) -> None:
    """What it does last, it does outside of any gate, after a pass has acknowledged its generation."""
    with gate.mutation(THREAD):
        job = ledger.add_job(THREAD, asks=True)
    with gate.prearmed_mutation(THREAD, "a slow call"):
        story.pass_time(0)
        story.pass_time(61)
        ledger.answer(job.pk)
    story.pass_time(0)
    story.pass_time(10)


def _the_database_forgets_a_begin(story: Story) -> None:
    """A crash of the database loses an asynchronous begin; its worker lives on and knows nothing of it."""
    with gate.mutation(THREAD):
        ledger.add_job(THREAD)
    stored = ThreadMaintenance.objects.filter(pk=THREAD)
    before = stored.values().get()
    forgotten = _begun()
    stored.update(**before)
    successor = _begun()
    assert forgotten.lease.epoch == successor.lease.epoch
    _write(successor.lease)
    _write(forgotten.lease)
    _write(successor.lease)
    finish.finish(forgotten, Done(ran=True), in_place=False)
    story.pass_time(60)
    story.pass_time(60)


def _begun() -> Begun:
    begun = begin.begin(Delivery(thread_id=THREAD), uuid.uuid4())
    assert isinstance(begun, Begun)
    return begun


def _write(held: Lease) -> None:
    try:
        with lease.fenced(held):
            ledger.append(held)
    except OwnershipLost:
        pass


STORIES: dict[str, tuple[Told, Variant, Callable[[], Parts], str]] = {
    "a timer that does not bump": (
        _a_timer_comes,
        variants.letting_timers_come_without_a_bump,
        Parts,
        "can go on, the row is clean and no timer stands",
    ),
    "a caught-up pass that forgets the timer": (
        _somebody_wakes_a_thread_that_waits_for_its_timer,
        variants.forgetting_the_timer_in_a_caught_up_pass,
        Parts,
        "can go on, the row is clean and no timer stands",
    ),
    "a wave write that decides something without a bump": (
        _a_reply_comes_with_the_wave_of_a_caught_up_pass,
        nullcontext,
        lambda: Parts(outbox=Outbox(bumps=False)),
        "(waiting) can go on, the row is clean",
    ),
    "a suspension that does not look for its answer": (
        _the_answer_is_there_before_the_job_asks,
        nullcontext,
        lambda: Parts(runtime=JobRuntime(suspends_blindly=True)),
        "(waiting) can go on, the row is clean",
    ),
    "a publication cursor that is a generation": (
        _a_job_settles_behind_the_first_drain_of_its_pass,
        nullcontext,
        lambda: Parts(sink=GenerationSink()),
        "P1: 1 settlements are not published and no pass is due",
    ),
    "an end after expiry that does not bump": (
        _a_prearmed_mutation_outlives_its_lease,
        variants.ending_without_a_look_at_the_expiry,
        Parts,
        "(waiting) can go on, the row is clean",
    ),
    "an epoch without a token": (
        _the_database_forgets_a_begin,
        variants.comparing_the_epoch_alone,
        Parts,
        "a pass wrote after another one had taken over",
    ),
}


@pytest.mark.parametrize("broken", STORIES)
def test_the_right_form_tells_the_story_to_a_good_end(frozen: FrozenClock, sent: list[Hint], broken: str) -> None:
    story, _, _, _ = STORIES[broken]
    assert _told(frozen, story, Parts()) == []


@pytest.mark.parametrize("broken", STORIES)
def test_the_stories_catch(frozen: FrozenClock, sent: list[Hint], broken: str) -> None:
    story, variant, parts, words = STORIES[broken]
    with variant():
        assert words in "\n".join(_told(frozen, story, parts()))


def test_a_scan_that_reads_the_answers_saves_a_blind_suspension(frozen: FrozenClock, sent: list[Hint]) -> None:
    """The rule stands twice: whoever suspends looks, and so does finish."""
    parts = Parts(runtime=JobRuntime(suspends_blindly=True), ledger=JobLedger())
    assert _told(frozen, _the_answer_is_there_before_the_job_asks, parts) == []


def _told(frozen: FrozenClock, story: Told, parts: Parts) -> list[str]:
    """Tells the story with these parts; what was broken at its end."""
    ports = job_hooks(runtime=parts.runtime, ledger=parts.ledger, outbox=parts.outbox, sink=parts.sink)
    with hooks.installed(ports):
        story(Story(frozen))
        return [*violations(Watched(THREAD, ports=True)), *at_rest(look(THREAD))]
