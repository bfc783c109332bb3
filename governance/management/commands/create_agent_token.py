"""`manage.py create_agent_token <agent_id> [--days N]`: a new token; it stands alone in the last line of stdout."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher_project.errors import Invalid, NotFound
from governance.models import Agent, AgentToken
from governance.models.token import MAX_DAYS

SHOWN_AGENTS = 12


class Command(BaseCommand):
    help = "Issue a token for an agent. The token is printed last, once, and can't be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agent_id")
        parser.add_argument(
            "--days", type=int, metavar="N", help=f"how long it is valid (1 to {MAX_DAYS}); without: for good"
        )

    def handle(self, *, agent_id: str, days: int | None, **options: Any) -> None:
        try:
            token, plain = AgentToken.issue(agent_id, days=days, created_by=f"shell:{user_name()}")
        except NotFound:
            raise CommandError(unknown_agent(agent_id)) from None
        except Invalid:
            raise CommandError(f"--days must lie between 1 and {MAX_DAYS}, and {days} doesn't.") from None
        until = f"valid until {token.expires_at:%Y-%m-%d}" if token.expires_at else "valid until revoked"
        self.stdout.write(f"Token {token.key} of {agent_id},\n{until}; shown this once:")
        self.stdout.write(plain)


def user_name() -> str:
    """Whoever sits at the shell; containers have users without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def unknown_agent(agent_id: str) -> str:
    known = list(Agent.objects.values_list("pk", flat=True)[: SHOWN_AGENTS + 1])
    lines = [f"There is no agent {agent_id!r}."]
    if known:
        more = ["…"] if len(known) > SHOWN_AGENTS else []
        lines += ["These exist:", *(f"  {name}" for name in [*known[:SHOWN_AGENTS], *more])]
    return "\n".join([*lines, "Add it in the admin under Agents, then repeat."])
