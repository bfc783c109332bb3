"""`manage.py revoke_agent_token <key>`: the token is refused from now on."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher_project.errors import NotFound
from governance.models import AgentToken
from governance.models.token import PREFIX


class Command(BaseCommand):
    help = "Revoke a token by its key (list_agent_tokens shows it). Repeating does no harm."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key")

    def handle(self, *, key: str, **options: Any) -> None:
        try:
            token = AgentToken.revoke(key_of(key))
        except NotFound:
            raise CommandError(f"There is no token {key[:40]!r}.\n`manage.py list_agent_tokens` shows them.") from None
        self.stdout.write(f"Token {token.key} of {token.agent_id} is revoked.")


def key_of(given: str) -> str:
    """The key itself, or the one inside of a token: who has a leaked token at hand pastes that."""
    return given.removeprefix(PREFIX).split("_")[0] if given.startswith(PREFIX) else given
