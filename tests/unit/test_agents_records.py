"""What a record may hold (ledger-recovery, d.2; scenarios E)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agents import canonical, records
from agents.canonical import NULL, Json
from agents.records import FAMILIES, Failure, NewRecord, StepSettled, SubmissionSettled

FAILURE = {"error_tag": "ValueError", "message": "no"}


def settlement(**members: Any) -> SubmissionSettled:
    return SubmissionSettled.model_validate({"submission": "s", "receipt": "receipt:s", **members})


@pytest.mark.parametrize(
    "members",
    [
        {"outcome": "completed", "run": "run:s", "result": None},
        {"outcome": "completed", "run": "run:s", "result": {"a": 1}},
        {"outcome": "failed", "run": "run:s", "failure": FAILURE},
        {"outcome": "failed", "failure": {"error_tag": "T" * 256, "message": "m" * 16_384}},
        {"outcome": "aborted"},
        {"outcome": "completed", "run": "run:h", "host": "h"},
    ],
)
def test_56_a_settlement_that_says_one_thing_is_valid(members: dict[str, Any]) -> None:
    payload = settlement(**members)
    again = records.decode("submission-settled", 1, canonical.parse(payload.text()))
    assert again == payload


@pytest.mark.parametrize(
    "members",
    [
        {"outcome": "failed", "run": "run:s"},
        {"outcome": "failed", "failure": {"error_tag": "", "message": "m"}},
        {"outcome": "failed", "failure": {"error_tag": "T" * 257, "message": "m"}},
        {"outcome": "failed", "failure": {"error_tag": "T", "message": "m" * 16_385}},
        {"outcome": "failed", "failure": {**FAILURE, "more": 1}},
        {"outcome": "failed", "failure": FAILURE, "result": 1},
        {"outcome": "aborted", "result": 1},
        {"outcome": "aborted", "failure": FAILURE},
        {"outcome": "completed", "run": "run:s"},
        {"outcome": "completed", "result": 1},
        {"outcome": "completed", "run": "run:s", "result": 1, "failure": FAILURE},
        {"outcome": "completed", "run": "run:h", "host": "h", "result": 1},
        {"outcome": "failed", "failure": FAILURE, "finish_reason": "budget-exhausted"},
        {"outcome": "lost"},
        {"outcome": "aborted", "note": "extra"},
    ],
)
def test_56_57_58_a_settlement_that_says_anything_else_is_not(members: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settlement(**members)


def test_a_result_of_null_is_a_result() -> None:
    assert '"result":null' in settlement(outcome="completed", run="run:s", result=NULL).text()


@pytest.mark.parametrize("payload", FAMILIES.values(), ids=lambda payload: payload.family)
def test_every_payload_refuses_what_it_does_not_know(payload: type[records.Payload]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        payload.model_validate({"surprise": 1})


def test_the_stored_text_is_canonical_json_with_the_time_in_it() -> None:
    record = NewRecord("step:run:s:one", StepSettled(run="run:s", name="one", attempt=1, output=Json('{"a":[1]}')))
    text = records.stamped(record.body(), "2026-01-01T00:00:00.000Z")
    assert canonical.encode(canonical.parse(text)) == text
    assert canonical.parse(text)["payload"]["output"] == {"a": [1]}


def test_ids_are_derived_from_what_a_record_is_about() -> None:
    assert records.step_id(records.run_id("s"), "a:b") == "step:run:s:a:b"
    assert records.step_name("run:s", "step:run:s:a:b") == "a:b"
    assert records.step_name("run:other", "step:run:s:a:b") is None


def test_a_failure_is_exactly_its_tag_and_its_text() -> None:
    assert set(Failure.model_fields) == {"error_tag", "message"}
