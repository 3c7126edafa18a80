"""People for tests of the admin: a user with exactly the permissions named, logged in."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

APPS = ("wakeful_maintenance", "wakeful_agents")
VIEWS = ("view_threadmaintenance", "view_passrun", "view_operatoraction", "view_mutationlease", "view_workerheartbeat")


def operator(*permissions: str, name: str = "ann") -> Client:
    """A client of a staff user who may view all of maintenance and do what is named beside."""
    user = get_user_model().objects.create_user(name, is_staff=True)
    codenames = {*VIEWS, *permissions}
    granted = Permission.objects.filter(content_type__app_label__in=APPS, codename__in=codenames)
    assert granted.count() == len(codenames), "a permission of that name does not exist"
    user.user_permissions.set(granted)
    client = Client()
    client.force_login(user)
    return client


def lose(client: Client, permission: str) -> None:
    """Takes a permission from the user of a client, who stays logged in."""
    user = get_user_model().objects.get(pk=client.session["_auth_user_id"])
    user.user_permissions.remove(Permission.objects.get(codename=permission))
