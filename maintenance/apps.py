"""The Django application `maintenance` (label `wakeful_maintenance`)."""

from __future__ import annotations

from django.apps import AppConfig


class MaintenanceConfig(AppConfig):
    """Registers the system checks and the periodic rows; opens no connection."""

    name = "maintenance"
    label = "wakeful_maintenance"
    verbose_name = "Wakeful maintenance"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from maintenance import beat, checks

        checks.register()
        beat.connect(self.label, beat.periodic_rows)
