"""The Celery app of a worker whose own sweep timer is taken out: only beat can make it sweep."""

from __future__ import annotations

from config.celery import app
from maintenance.bootstep import SweepStep

app.steps["worker"].discard(SweepStep)
