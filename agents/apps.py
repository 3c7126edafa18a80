"""The Django application `agents` (label `wakeful_agents`)."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

AGENT_MODULE = "durable_agents"
"""The module of an installed app in which its agents are declared."""


class AgentsConfig(AppConfig):
    """Discovers the agents of the installed apps; opens no connection."""

    name = "agents"
    label = "wakeful_agents"
    verbose_name = "Wakeful agents"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from agents import beat, checks, failpoints  # noqa: F401 - failpoints: declares our names for the crash matrix
        from maintenance.beat import connect

        checks.register()
        connect(self.label, beat.periodic_rows)
        autodiscover_modules(AGENT_MODULE)
