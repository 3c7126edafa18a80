"""System checks: settings under which accepted work would not be done, each with a stable id and a hint."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from agents.conf import get_settings

Messages = list[checks.CheckMessage]

PORTS = {"RUNTIME": "agents.runtime.ThreadRuntime", "LEDGER": "agents.runtime.ThreadLedger"}
"""What `MAINTENANCE` must name for the work of agents to be done."""


def register() -> None:
    """Registers the checks with Django; called when the app is ready."""
    for check in (check_settings, check_ports, check_authorizer, check_policies):
        checks.register(check, checks.Tags.compatibility)


def check_settings(**_kwargs: Any) -> Messages:
    """Compares the values of `AGENTS` with one another."""
    try:
        problems = get_settings().problems()
    except ImproperlyConfigured as error:
        return [_error("E000", str(error), "Correct the dictionary AGENTS in the settings.")]
    return [_error(problem.id, problem.message, problem.hint) for problem in problems]


def check_ports(**_kwargs: Any) -> Messages:
    """Whether passes do the work of agents at all: the default ports would acknowledge it undone."""
    given = getattr(settings, "MAINTENANCE", {})
    left = [key for key in PORTS if isinstance(given, Mapping) and key not in given]
    if not left:
        return []
    hint = f"Set MAINTENANCE = {{{', '.join(f'{key!r}: {path!r}' for key, path in PORTS.items())}}}."
    message = f"The app agents is installed and MAINTENANCE does not name {' and '.join(left)}: no pass does its work."
    return [_error("E003", message, hint)]


def check_authorizer(**_kwargs: Any) -> Messages:
    """Whether there is somebody to ask who may do what: without, every operation would be denied."""
    try:
        path = get_settings().authorizer
    except ImproperlyConfigured:
        return []
    try:
        found = import_string(path)
    except ImportError as error:
        return [_error("E004", f"{path} cannot be imported: {error}", _AUTHORIZER)]
    return [] if hasattr(found, "allows") else [_error("E004", f"{path} has no method `allows`.", _AUTHORIZER)]


def check_policies(**_kwargs: Any) -> Messages:
    """Whether the host's functions can be asked: without the first no tool would run, without the second every
    approval would go to a person."""
    try:
        settings_in_force = get_settings()
    except ImproperlyConfigured:
        return []
    named = {
        "TOOL_AUTHORIZER": settings_in_force.tool_authorizer,
        "APPROVAL_POLICY": settings_in_force.approval_policy,
    }
    return [message for key, path in named.items() if path is not None for message in _uncallable(key, path)]


def _uncallable(key: str, path: str) -> Messages:
    hint = f"AGENTS[{key!r}] must name a plain function that takes one agents.api.Intended."
    try:
        found = import_string(path)
    except ImportError as error:
        return [_error("E005", f"{path} cannot be imported: {error}", hint)]
    if not callable(found) or iscoroutinefunction(found):
        return [_error("E005", f"{path} is no plain function.", hint)]
    return []


_AUTHORIZER = "AGENTS['AUTHORIZER'] must name a class like agents.operations.authorize.DjangoPermissions."


def _error(number: str, message: str, hint: str) -> checks.Error:
    return checks.Error(message, hint=hint, id=f"agents.{number}")
