"""The system checks of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core import checks as django_checks

from agents import checks

if TYPE_CHECKING:
    from pytest_django import Settings


def ids(found: list[django_checks.CheckMessage]) -> list[str | None]:
    return [message.id for message in found]


def test_the_project_itself_passes() -> None:
    assert checks.check_settings() == []
    assert checks.check_ports() == []
    assert checks.check_policies() == []


def test_the_checks_are_among_those_that_django_runs() -> None:
    assert {
        checks.check_settings,
        checks.check_ports,
        checks.check_authorizer,
        checks.check_policies,
    } <= django_checks.registry.registry.registered_checks


def test_values_that_do_not_fit_together_are_named(settings: Settings) -> None:
    settings.AGENTS = {"RETRY_BACKOFF_BASE_MS": 60_001, "LOG_PAGE": 1_025}
    assert ids(checks.check_settings()) == ["agents.E001", "agents.E002"]


def test_a_dictionary_that_cannot_be_read_is_an_error_with_what_is_wrong(settings: Settings) -> None:
    settings.AGENTS = {"RETRY_BUGDET": 3}
    (message,) = checks.check_settings()
    assert message.id == "agents.E000"
    assert "did you mean 'RETRY_BUDGET'" in message.msg


def test_ports_that_are_not_named_are_an_error(settings: Settings) -> None:
    """Passes would acknowledge accepted work without doing it."""
    settings.MAINTENANCE = {"RUNTIME": "agents.runtime.ThreadRuntime"}
    (message,) = checks.check_ports()
    assert message.id == "agents.E003"
    assert "does not name LEDGER:" in message.msg
    assert message.hint is not None
    assert "'LEDGER': 'agents.runtime.ThreadLedger'" in message.hint
    settings.MAINTENANCE = {}
    (message,) = checks.check_ports()
    assert "RUNTIME and LEDGER" in message.msg


def test_ports_that_a_host_names_are_its_own_business(settings: Settings) -> None:
    settings.MAINTENANCE = {"RUNTIME": "maintenance.ports.InertRuntime", "LEDGER": "host.ports.Ledger"}
    assert checks.check_ports() == []


def test_something_that_is_no_dictionary_is_left_to_the_check_of_maintenance(settings: Settings) -> None:
    settings.MAINTENANCE = None
    assert checks.check_ports() == []


@pytest.mark.parametrize("path", ["agents.operations.authorize.Missing", "agents.conf.AgentsSettings"])
def test_an_authorizer_that_cannot_be_asked_is_named(settings: Settings, path: str) -> None:
    settings.AGENTS = {"AUTHORIZER": path}
    (message,) = checks.check_authorizer()
    assert message.id == "agents.E004"
    assert path in message.msg


def test_the_default_authorizer_can_be_asked() -> None:
    assert checks.check_authorizer() == []


@pytest.mark.parametrize("key", ["TOOL_AUTHORIZER", "APPROVAL_POLICY"])
@pytest.mark.parametrize(
    "path", ["tests.hosting.missing", "nowhere.ask", "tests.hosting.PATH", "tests.hosting.coroutine"]
)
def test_a_function_of_the_host_that_cannot_be_asked_is_named(settings: Settings, key: str, path: str) -> None:
    settings.AGENTS = {key: path}
    (message,) = checks.check_policies()
    assert message.id == "agents.E005"
    assert path in message.msg
    assert message.hint is not None
    assert key in message.hint


def test_functions_of_the_host_that_can_be_asked_pass(settings: Settings) -> None:
    settings.AGENTS = {"TOOL_AUTHORIZER": "tests.hosting.ask", "APPROVAL_POLICY": None}
    assert checks.check_policies() == []


@pytest.mark.parametrize("check", [checks.check_policies, checks.check_authorizer])
def test_settings_that_cannot_be_read_are_left_to_their_own_check(settings: Settings, check: Any) -> None:
    settings.AGENTS = {"TOOL_AUTHORIZER": "ask"}
    assert check() == []
    (message,) = checks.check_settings()
    assert "must be None or a dotted path such as 'package.module.name', not 'ask'" in message.msg
