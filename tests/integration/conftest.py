"""What only tests of one process share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.auth import get_user_model

if TYPE_CHECKING:
    from django.contrib.auth.models import User


@pytest.fixture
def admin_user(db: None) -> User:
    """Return a superuser without a password: hashing one takes longer than the rest of a test."""
    user: User = get_user_model().objects.create_superuser("admin")
    return user
