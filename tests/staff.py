"""People at the admin: nobody, staff who read, an operator by permission, a superuser."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, Permission
from django.test import Client

KINDS = ("anonymous", "reader", "operator", "superuser")
OPERATORS = ("operator", "superuser")


def make_staff(kind: str) -> AbstractBaseUser:
    users = get_user_model().objects
    if kind == "superuser":
        return users.create_superuser("root", password="x")
    user = users.create_user(kind, password="x", is_staff=True)
    if kind == "operator":
        user.user_permissions.add(Permission.objects.get(codename="operate"))
    return user


def client_of(kind: str) -> Client:
    client = Client()
    if kind != "anonymous":
        client.force_login(make_staff(kind))
    return client


@pytest.fixture
def rung(monkeypatch) -> list[str]:
    """What the admin rang, in order."""
    keys: list[str] = []
    monkeypatch.setattr("governance.staff.ring", lambda *given: keys.extend(given))
    return keys
