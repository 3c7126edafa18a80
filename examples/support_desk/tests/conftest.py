"""Prepares every test of the desk."""

from __future__ import annotations

pytest_plugins = ["agents.testing.plugin"]
