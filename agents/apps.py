"""The Django application `agents` (label `wakeful_agents`)."""

from __future__ import annotations

from django.apps import AppConfig


class AgentsConfig(AppConfig):
    """Discovers the agents of the installed apps; opens no connection."""

    name = "agents"
    label = "wakeful_agents"
    verbose_name = "Wakeful agents"
    default_auto_field = "django.db.models.BigAutoField"
