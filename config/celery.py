"""The Celery app: a carrier of hints. What it may lose, the database knows."""

from __future__ import annotations

import os

from celery import Celery, signals

from maintenance import bootstep

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("wakeful")
# By name, so that it is read when first needed: Django's settings import this module.
app.config_from_object("config.celery_settings")
app.autodiscover_tasks()
bootstep.install(app)


@signals.setup_logging.connect
def _keep_djangos_logging(**_kwargs: object) -> None:
    """Do nothing: that there is a receiver keeps Celery from setting up logging of its own."""


@signals.worker_init.connect
@signals.beat_init.connect
def _refuse_unsound_configuration(**_kwargs: object) -> None:
    from maintenance.checks import refuse_errors

    refuse_errors()
