"""What an installation starts with: fixtures, an operator's login, tokens. Once, in one transaction, or not at all.

The group "Operators" is the mark that it was done. Rows alone would not tell a first start from an operator who
removed what we brought, and a file would not know of another data directory on the same database.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command
from django.db import connections, transaction

from governance.models import Agent, AgentToken, Department
from routing.models import RoutingRule

FIXTURES = ("departments", "agents", "routing_rules")
TOKENS = "tokens.env"
LOGIN = "operator"
OPERATORS = "Operators"
TOKEN_AGENTS = {"main": "DISPATCHER_AGENT_TOKEN", "dashboard-operator": "DISPATCHER_OPERATOR_TOKEN"}
LOCK_KEY = 0x57464450  # any number of our own
LOCK_DATABASE = "direct"  # a session lock would outlive us in a pool
CREATED_BY = "system:first-start"


@dataclass(frozen=True, slots=True)
class FirstStart:
    """What was made. `lines`: shell text with the secrets, none where there was nothing to make."""

    lines: list[str]
    file: Path


def tokens_file() -> Path:
    return Path(settings.DATA_DIR) / TOKENS


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One at a time on this database: several machines may start at once."""
    with connections[LOCK_DATABASE].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK_KEY])
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK_KEY])


def run() -> FirstStart | None:
    """None when it was done before. Errors: OSError (the data directory), and nothing is kept."""
    with transaction.atomic():
        if Group.objects.filter(name=OPERATORS).exists():
            return None
        load_fixtures()
        add_group()
        lines = [*issue_tokens(), *add_login()]
        if lines:
            # Before the commit: after a crash in between, the next start makes both anew, and no token is ever lost.
            write(tokens_file(), lines)
        return FirstStart(lines, tokens_file())


def load_fixtures() -> None:
    """Only into empty tables: what somebody filled already is theirs."""
    if any(model.objects.exists() for model in (Department, Agent, RoutingRule)):
        return
    paths = [str(settings.BASE_DIR / "fixtures" / f"{name}.json") for name in FIXTURES]
    call_command("loaddata", *paths, verbosity=0)


def add_group() -> None:
    operate = Permission.objects.get(content_type__app_label="governance", codename="operate")
    Group.objects.create(name=OPERATORS).permissions.add(operate)


def issue_tokens() -> list[str]:
    lines = []
    for agent_id, variable in TOKEN_AGENTS.items():
        if Agent.objects.filter(pk=agent_id).exists():
            _, plain = AgentToken.issue(agent_id, created_by=CREATED_BY)
            lines += [f"# {agent_id}", f"export {variable}={plain}"]
    return lines


def add_login() -> list[str]:
    """A superuser, unless people can sign in already."""
    users = get_user_model().objects
    if users.filter(is_superuser=True, is_active=True).exists() or users.filter(username=LOGIN).exists():
        return []
    password = secrets.token_urlsafe(12)
    users.create_superuser(LOGIN, password=password)
    return [
        "# the admin's login",
        f"export DISPATCHER_ADMIN_LOGIN={LOGIN}",
        f"export DISPATCHER_ADMIN_PASSWORD={password}",
    ]


def write(path: Path, lines: list[str]) -> None:
    """Whole or not at all, for its owner only. A file of another database that lay here is kept as `.old`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("# Made at the first start. Who can read this file can do everything here.\n")
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(f"{path.name}.old"))
    draft.replace(path)
