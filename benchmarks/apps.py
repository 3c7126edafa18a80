"""The Django app of the benchmarks' own tables. It has no migrations: its database lives for one run."""

from __future__ import annotations

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """Tables of the small job that every contestant does."""

    name = "benchmarks"
    label = "wakeful_benchmarks"
    default_auto_field = "django.db.models.BigAutoField"
