"""System checks: settings under which accepted work would not be done, each with a stable id and a hint."""

from __future__ import annotations

from collections.abc import Mapping
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
    for check in (check_settings, check_ports, check_authorizer):
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


_AUTHORIZER = "AGENTS['AUTHORIZER'] must name a class like agents.operations.authorize.DjangoPermissions."


def _error(number: str, message: str, hint: str) -> checks.Error:
    return checks.Error(message, hint=hint, id=f"agents.{number}")
