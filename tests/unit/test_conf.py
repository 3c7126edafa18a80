"""The two settings dictionaries: what they accept, what they refuse and what they say about it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from agents.conf import AgentsSettings
from agents.conf import get_settings as get_agents_settings
from maintenance.conf import MaintenanceSettings, get_settings
from maintenance.settings_schema import read_settings

if TYPE_CHECKING:
    from pytest_django import Settings


def read(given: object) -> MaintenanceSettings:
    return read_settings(MaintenanceSettings, given, name="MAINTENANCE")


def refusal(given: object) -> str:
    with pytest.raises(ImproperlyConfigured) as raised:
        read(given)
    return str(raised.value)


def problem_ids(**given: Any) -> set[str]:
    return {problem.id for problem in read(given).problems()}


def test_an_empty_dictionary_gives_the_defaults() -> None:
    configured = read({})

    assert configured.lease_ttl == timedelta(seconds=30)
    assert configured.alarm_backoff_base == timedelta(milliseconds=100)
    assert configured.pass_history == timedelta(days=14)
    assert configured.queue == "maintenance"
    assert configured.publication == ()


def test_v01_the_defaults_are_those_of_the_specification() -> None:
    """Milliseconds, as its table of numbers has them; sizes and counts as they are."""
    ours, agents = read({}), read_settings(AgentsSettings, {}, name="AGENTS")
    durations = {
        "alarm_backoff_base": 100,
        "alarm_backoff_cap": 5_000,
        "scan_interval": 1_000,
        "soft_yield": 600_000,
        "pass_deadline": 840_000,
        "hard_limit": 900_000,
        "lease_ttl": 30_000,
        "lease_renewal": 10_000,
        "lease_self_cancel": 24_000,
        "mutation_lease_ttl": 60_000,
        "dispatch_horizon": 60_000,
        "sweep_interval": 1_000,
        "sweep_grace": 5_000,
        "failure_backoff_base": 1_000,
        "failure_backoff_cap": 60_000,
        "early_tolerance": 20,
        "early_floor": 50,
    }
    assert {name: getattr(ours, name) / timedelta(milliseconds=1) for name in durations} == durations
    assert (ours.minimum, ours.sweep_grace * 2**ours.sweep_grace_doublings) == (
        timedelta(milliseconds=50),
        timedelta(seconds=320),
    )
    assert (ours.sweep_batch, ours.quarantine_starts) == (500, 20)
    assert (agents.settlement_poll, agents.abort_poll) == (timedelta(milliseconds=500),) * 2
    assert (agents.max_queue_depth, agents.max_input_bytes) == (256, 1_048_576)
    assert (agents.log_page, agents.max_log_page, agents.max_batch_records) == (256, 1_024, 256)


def test_the_defaults_hold_all_relations() -> None:
    assert read({}).problems() == []
    assert read_settings(AgentsSettings, {}, name="AGENTS").problems() == []


def test_milliseconds_become_a_timedelta_under_the_name_without_the_unit() -> None:
    assert read({"LEASE_TTL_MS": 250}).lease_ttl == timedelta(milliseconds=250)


def test_a_misspelt_key_is_refused_with_the_likely_one() -> None:
    assert refusal({"SWEEP_BTACH": 5}) == ("MAINTENANCE has no key 'SWEEP_BTACH'; did you mean 'SWEEP_BATCH'?")


def test_a_key_in_lower_case_is_refused_with_the_one_in_capitals() -> None:
    assert "did you mean 'LEASE_TTL_MS'?" in refusal({"lease_ttl_ms": 5})


def test_a_key_like_no_other_is_refused_without_a_guess() -> None:
    assert refusal({"COLOUR": "red"}) == "MAINTENANCE has no key 'COLOUR'."


def test_everything_wrong_is_named_at_once() -> None:
    said = refusal({"SWEEP_BTACH": 5, "LEASE_TTL_MS": "soon", "FUSED": 1})

    assert len(said.splitlines()) == 3


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("SWEEP_BATCH", "500", "a whole number from 1 to 100000"),
        ("SWEEP_BATCH", 0, "a whole number from 1 to 100000"),
        ("SWEEP_BATCH", True, "a whole number from 1 to 100000"),
        ("LEASE_TTL_MS", 1.5, "a whole number of milliseconds from 50 to 3600000"),
        ("LEASE_TTL_MS", timedelta(1), "a whole number of milliseconds from 50 to 3600000"),
        ("PASS_HISTORY_DAYS", 0, "a whole number of days from 1 to 3650"),
        ("FUSED", 1, "True or False"),
        ("QUEUE", "  ", "a string that is not empty"),
        ("RUNTIME", "ThreadRuntime", "a dotted path such as 'package.module.Name'"),
        ("RUNTIME", "agents..Runtime", "a dotted path such as 'package.module.Name'"),
        ("PUBLICATION", "agents.Sink", "a list of dotted paths"),
        ("PUBLICATION", ["nowhere"], "a list of dotted paths"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(key: str, value: object, expected: str) -> None:
    assert refusal({key: value}) == f"MAINTENANCE[{key!r}] must be {expected}, not {value!r}."


def test_something_else_than_a_dictionary_is_refused() -> None:
    assert refusal(["LEASE_TTL_MS"]) == "MAINTENANCE must be a dictionary, not ['LEASE_TTL_MS']."


def test_a_list_of_sinks_keeps_its_order() -> None:
    assert read({"PUBLICATION": ["b.B", "a.A"]}).publication == ("b.B", "a.A")


def test_settings_cannot_be_changed_after_they_are_read() -> None:
    with pytest.raises(FrozenInstanceError):
        read({}).sweep_batch = 1  # type: ignore[misc]


def test_settings_are_read_once_and_again_after_a_change(settings: Settings) -> None:
    before = get_settings()
    assert get_settings() is before

    settings.MAINTENANCE = {"SWEEP_BATCH": 7}
    settings.AGENTS = {"MAX_QUEUE_DEPTH": 2}

    assert get_settings().sweep_batch == 7
    assert get_agents_settings().max_queue_depth == 2


@pytest.mark.parametrize(("base", "minimum"), [(100, 50), (101, 51), (1, 1), (2, 1)])
def test_the_minimum_delay_is_half_the_base_rounded_up(base: int, minimum: int) -> None:
    configured = read({"ALARM_BACKOFF_BASE_MS": base})

    assert configured.minimum_ms == minimum
    assert configured.minimum == timedelta(milliseconds=minimum)


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({"LEASE_RENEWAL_MS": 12_001}, "E003"),
        ({"PASS_DEADLINE_MS": 900_000}, "E004"),
        ({"ALARM_BACKOFF_CAP_MS": 99}, "E010"),
        ({"ALARM_BACKOFF_BASE_MS": 2_002}, "E011"),
        ({"FAILURE_BACKOFF_BASE_MS": 60_001}, "E012"),
        ({"SWEEP_INTERVAL_MS": 30_001}, "E013"),
        ({"CONTROL_QUEUE": "maintenance"}, "E014"),
        ({"LEASE_TTL_MS": 840_000, "LEASE_SELF_CANCEL_MS": 20_000}, "E015"),
        ({"LEASE_SELF_CANCEL_MS": 30_000}, "E016"),
        ({"LEASE_SELF_CANCEL_MS": 10_000}, "E016"),
        ({"SOFT_YIELD_MS": 840_000}, "E017"),
        ({"IN_PLACE_MS": 10_000, "SOFT_YIELD_MS": 10_000}, "E018"),
    ],
)
def test_a_relation_that_does_not_hold_is_named(given: dict[str, int], number: str) -> None:
    assert problem_ids(**given) == {number}


def test_each_relation_holds_up_to_its_limit() -> None:
    assert problem_ids(LEASE_RENEWAL_MS=12_000, LEASE_SELF_CANCEL_MS=29_999) == set()
    assert problem_ids(ALARM_BACKOFF_BASE_MS=2_000, SWEEP_INTERVAL_MS=30_000) == set()
    assert problem_ids(PASS_DEADLINE_MS=899_999, SOFT_YIELD_MS=899_998) == set()


def test_a_limit_that_need_not_be_there_is_none_until_it_is_given() -> None:
    def resume_within(given: dict[str, object]) -> timedelta | None:
        return read_settings(AgentsSettings, given, name="AGENTS").resume_within

    assert resume_within({}) is resume_within({"RESUME_WITHIN_MS": None}) is None
    assert resume_within({"RESUME_WITHIN_MS": 3_600_000}) == timedelta(hours=1)
    with pytest.raises(ImproperlyConfigured, match="must be None or a whole number of milliseconds from 3600000"):
        resume_within({"RESUME_WITHIN_MS": 3_599_999})


def test_relations_of_agents_settings_are_named() -> None:
    configured = read_settings(AgentsSettings, {"RETRY_BACKOFF_BASE_MS": 60_001, "LOG_PAGE": 1_025}, name="AGENTS")

    assert [problem.id for problem in configured.problems()] == ["E001", "E002"]
