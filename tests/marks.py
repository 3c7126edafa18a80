"""Marks that several suites share."""

from __future__ import annotations

import pytest

maintenance_database = pytest.mark.django_db(transaction=True, available_apps=["maintenance"])
"""Transactions that really commit, seen by other connections; afterwards only maintenance's own tables are emptied.

Emptying every table and making Django's permissions and content types again costs three times as much as a test.
"""
