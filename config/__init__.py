"""The Django project: settings from the environment, the Celery app, URLs."""

from __future__ import annotations

from config.celery import app as celery_app

__all__ = ["celery_app"]
