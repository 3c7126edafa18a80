"""The canonical log (ledger-recovery, d; scenarios D)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from agents import api, canonical, log, records
from agents.errors import AppendConflict, UnknownThread
from agents.log import Appended, Batch, Producer, Tail
from agents.models import LogBatch, LogRecord, Thread
from agents.records import NewRecord, StepSettled
from maintenance import clock
from maintenance.models import ThreadMaintenance
from tests.agents_kit import agents_database, sound

if TYPE_CHECKING:
    from datetime import datetime

    from pytest_django import Settings

pytestmark = [agents_database, pytest.mark.usefixtures("form")]

ME = Producer("me", 7)


@pytest.fixture(autouse=True)
def _thread(echo: str) -> None:
    """A thread whose log holds its first record, and whose lease has come to the epoch of our producer."""
    api.submit("t", echo, 1)
    ThreadMaintenance.objects.update(lease_epoch=ME.epoch)


def fact(name: str, output: Any = None) -> NewRecord:
    return NewRecord(f"step:run:s:{name}", StepSettled(run="run:s", name=name, attempt=1, output=output))


def append(
    batch_id: str,
    *facts: NewRecord,
    tail: Tail | None = None,
    producer: Producer = ME,
    at: datetime | None = None,
) -> Appended:
    with transaction.atomic():
        return log.append(
            "t", Batch(batch_id, list(facts)), tail=tail or log.tail_of("t"), producer=producer, at=at or clock.now()
        )


def refusal(batch_id: str, *facts: NewRecord, **options: Any) -> str:
    """Why the append is refused; it must leave the log as it was."""
    before = list(LogRecord.objects.values_list("sequence", "text")), log.tail_of("t"), LogBatch.objects.count()
    with pytest.raises(AppendConflict) as raised:
        append(batch_id, *facts, **options)
    assert (
        list(LogRecord.objects.values_list("sequence", "text")),
        log.tail_of("t"),
        LogBatch.objects.count(),
    ) == before
    return raised.value.reason


def test_39_a_batch_gets_the_next_sequences_and_readers_see_it_in_order() -> None:
    appended = append("b", fact("one"), fact("two"), fact("three"))

    assert (appended.first_sequence, appended.last_sequence, appended.replayed) == (2, 4, False)
    assert appended.tail == log.tail_of("t")
    seen = [(record.sequence, record.payload.get("name")) for record in log.read("t")]
    assert seen == [(1, None), (2, "one"), (3, "two"), (4, "three")]


def test_40_a_record_id_twice_in_a_batch_is_refused() -> None:
    assert refusal("b", fact("one"), fact("one")) == "record-identity"


def test_41_a_record_id_of_an_earlier_batch_is_refused_without_a_partial_prefix() -> None:
    append("a", fact("one"))
    assert refusal("b", fact("two"), fact("one")) == "record-identity"


def test_42_the_identical_batch_is_answered_with_its_original_place() -> None:
    tail = log.tail_of("t")
    first = append("b", fact("one"), tail=tail)

    again = append("b", fact("one"), tail=tail)

    assert (again.first_sequence, again.last_sequence, again.replayed) == (2, 2, True)
    assert again.tail == first.tail
    assert LogRecord.objects.count() == 2


def test_43_a_batch_id_with_other_content_is_refused() -> None:
    append("b", fact("one", 1))
    assert refusal("b", fact("one", 2)) == "batch-digest"


def test_45_a_wrong_digest_at_the_right_sequence_is_refused_and_the_true_tail_commits() -> None:
    tail = log.tail_of("t")
    assert refusal("b", fact("one"), tail=Tail(tail.sequence, "f" * 64)) == "tail"
    assert refusal("b", fact("one"), tail=Tail(tail.sequence - 1, tail.digest)) == "tail"
    assert append("b", fact("one"), tail=tail).first_sequence == 2


def test_49_f21_a_replay_is_known_by_its_content_whatever_tail_producer_and_time_it_presents() -> None:
    append("b", fact("one"))
    append("c", fact("two"))

    again = append("b", fact("one"), producer=Producer("another", 9), at=clock.now() + timedelta(hours=1))

    assert (again.replayed, again.first_sequence) == (True, 2)
    assert again.tail == log.tail_of("t")


def test_55_an_append_that_is_rolled_back_leaves_nothing() -> None:
    before = log.tail_of("t")
    with transaction.atomic():
        log.append("t", Batch("b", [fact("one")]), tail=before, producer=ME, at=clock.now())
        transaction.set_rollback(True)
    assert log.tail_of("t") == before
    assert not LogBatch.objects.filter(batch_id="b").exists()


def test_61_the_producer_and_its_epoch_are_part_of_the_digest() -> None:
    batch, tail, at = Batch("b", [fact("one")]), log.tail_of("t"), clock.now()
    digests = {
        log.seal(batch, tail, producer, at).after.digest
        for producer in (ME, Producer("you", 7), Producer("me", 8), Producer("me", 7))
    }
    assert len(digests) == 3


def test_f35_every_batch_keeps_what_its_digest_is_made_of() -> None:
    append("b", fact("one"))
    append("c", fact("two"))

    batches = list(LogBatch.objects.order_by("first_sequence"))

    assert [batch.producer for batch in batches[1:]] == ["me", "me"]
    assert [batch.epoch for batch in batches] == [0, 7, 7]
    assert [batch.previous_digest for batch in batches] == ["0" * 64, batches[0].digest, batches[1].digest]
    assert Thread.objects.get().tail_digest == batches[2].digest
    sound(all_settled=False)


def test_an_append_outside_a_transaction_is_a_fault_of_the_caller() -> None:
    with pytest.raises(RuntimeError, match="transaction"):
        log.append("t", Batch("b", [fact("one")]), tail=log.tail_of("t"), producer=ME, at=clock.now())


def test_a_batch_has_a_bounded_number_of_records(settings: Settings) -> None:
    settings.AGENTS = {"MAX_BATCH_RECORDS": 2}
    append("b", fact("one"), fact("two"))
    for facts in ([], [fact("3"), fact("4"), fact("5")]):
        with pytest.raises(ValueError, match="1 to 2 records"):
            append("c", *facts)


def test_50_reading_from_a_sequence_gives_exactly_the_later_records() -> None:
    append("b", fact("one"), fact("two"))
    assert [record.sequence for record in api.progress("t", after=1)] == [2, 3]
    assert api.progress("t", after=3) == []


def test_a_page_is_bounded(settings: Settings) -> None:
    settings.AGENTS = {"LOG_PAGE": 2, "MAX_LOG_PAGE": 3}
    append("b", *[fact(str(n)) for n in range(5)])
    assert len(log.read("t")) == 2
    assert len(log.read("t", limit=100)) == 3
    assert [record.sequence for record in log.export("t")] == [1, 2, 3, 4, 5, 6]


def test_51_the_tail_of_a_thread_that_is_not_there_is_a_typed_error() -> None:
    with pytest.raises(UnknownThread):
        log.tail_of("nowhere")
    with pytest.raises(UnknownThread):
        list(log.export("nowhere"))


def test_a_record_shows_when_it_was_appended_in_milliseconds(echo: str) -> None:
    at = clock.now().replace(microsecond=123_456)
    append("b", fact("one"), at=at)
    record = log.find("t", "step:run:s:one")
    assert record is not None
    assert record.at == at.strftime("%Y-%m-%dT%H:%M:%S.123Z")


def test_the_stored_text_is_canonical_and_is_what_the_digest_covers() -> None:
    append("b", fact("one", {"b": 1.0, "a": "ü\x00", "big": 1e16}))

    text = LogRecord.objects.get(record_id="step:run:s:one").text

    assert canonical.encode(canonical.parse(text)) == text
    assert '{"a":"ü\\u0000","b":1,"big":10000000000000000}' in text
    sound(all_settled=False)


def test_a_record_of_an_unknown_family_cannot_be_decoded() -> None:
    with pytest.raises(ValueError, match="no payload for family 'gossip', version 1"):
        records.decode("gossip", 1, {})
