"""`manage.py list_agent_tokens [agent_id] [--json]`: which tokens exist. No secret is stored, so none is shown."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dispatcher_project import clock
from governance.ages import ago
from governance.models import AgentToken

AGENT_WIDTH = 21
LINE = "{:<12}  {:<21}  {:<7}  {:<10}  {:<10}  {}"


class Command(BaseCommand):
    help = "List agents' tokens: key, agent, state, created, expires, last used."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("agent_id", nargs="?")
        parser.add_argument("--json", action="store_true", dest="as_json", help="for programs")

    def handle(self, *, agent_id: str | None, as_json: bool, **options: Any) -> None:
        tokens = list(AgentToken.objects.of(agent_id))
        now = clock.now()
        if as_json:
            self.stdout.write(json.dumps([as_dict(token, now) for token in tokens], indent=2))
        elif not tokens:
            self.stdout.write(f"No token of {agent_id}." if agent_id else "There are no tokens.")
            self.stdout.write("`manage.py create_agent_token <agent_id>` issues one.")
        else:
            self.stdout.write(LINE.format("KEY", "AGENT", "STATE", "CREATED", "EXPIRES", "LAST USED"))
            for token in tokens:
                self.stdout.write(line(token, now))


def line(token: AgentToken, now: datetime) -> str:
    agent = token.agent_id if len(token.agent_id) <= AGENT_WIDTH else f"{token.agent_id[: AGENT_WIDTH - 1]}…"
    expires = f"{token.expires_at:%Y-%m-%d}" if token.expires_at else "never"
    used = ago(token.last_used_at, now)
    return LINE.format(token.key, agent, token.state(now), f"{token.created_at:%Y-%m-%d}", expires, used)


def as_dict(token: AgentToken, now: datetime) -> dict[str, Any]:
    return {
        "key": token.key,
        "agent_id": token.agent_id,
        "state": token.state(now),
        "created_by": token.created_by,
        **{
            name: moment.isoformat() if (moment := getattr(token, name)) else None
            for name in ("created_at", "expires_at", "revoked_at", "last_used_at")
        },
    }
