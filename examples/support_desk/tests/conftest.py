"""Prepares every test of the desk.

A project of its own says `pytest_plugins = ["agents.testing.plugin"]` in its root `conftest.py` instead; here that
would prepare the other tests of this repository as well.
"""

from __future__ import annotations

from agents.testing.plugin import _durable_testing

__all__ = ["_durable_testing"]
