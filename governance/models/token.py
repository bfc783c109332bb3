"""Bearer tokens. Shown once, stored as a SHA-256 digest: 256 random bits need no slow hash."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Literal

from django.core.exceptions import ValidationError
from django.db import connection, models
from django.db.models.functions import Now as TransactionTime  # noqa: TID251  (a column default: no caller has a clock)

from dispatcher_project import clock
from dispatcher_project.errors import Invalid, NotFound
from governance.actors import Actor
from governance.models.agent import Agent

PREFIX = "wd_"
MAX_DAYS = 3650

# One statement a request: the token, its agent, and whether the minute for "last used" is over.
LOOK_UP = """
SELECT token.key, token.revoked_at IS NOT NULL, COALESCE(token.expires_at <= clock_timestamp(), false),
       agent.agent_id, agent.role, agent.capabilities,
       token.last_used_at IS NULL OR token.last_used_at < clock_timestamp() - interval '1 minute'
FROM agent_tokens token JOIN agent_profiles agent ON agent.agent_id = token.agent_id
WHERE token.digest = %s
"""
TOUCH = """
WITH used AS (
    UPDATE agent_tokens SET last_used_at = clock_timestamp()
    WHERE key = %(key)s AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
    RETURNING agent_id
)
INSERT INTO agent_activity (agent_id, last_seen_at) SELECT agent_id, clock_timestamp() FROM used
ON CONFLICT (agent_id) DO UPDATE SET last_seen_at = excluded.last_seen_at
"""


class TokenRefused(Exception):
    """The token is unknown, revoked or expired. `code` says which (`token_expired` for the last)."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)


class AgentTokenQuerySet(models.QuerySet["AgentToken"]):
    def of(self, agent_id: str | None) -> AgentTokenQuerySet:
        """An agent's; None: everybody's."""
        return self.all() if agent_id is None else self.filter(agent_id=agent_id)


class AgentToken(models.Model):
    key = models.CharField(primary_key=True, max_length=16, help_text="Names the token; no secret.")
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="tokens")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(db_default=TransactionTime(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = AgentTokenQuerySet.as_manager()

    class Meta:
        db_table = "agent_tokens"
        ordering = ["agent_id", "created_at"]

    def __str__(self) -> str:
        return f"{self.agent_id} {self.key}"

    @classmethod
    def issue(cls, agent_id: str, *, days: int | None = None, created_by: Actor | str = "") -> tuple[AgentToken, str]:
        """A new token and its plain text, which nobody can read again. Errors: NotFound (agent), Invalid (days)."""
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise Invalid(fields={"days": f"must lie between 1 and {MAX_DAYS}"})
        if not Agent.objects.filter(pk=agent_id).exists():
            raise NotFound(f"There is no agent {agent_id!r}.", agent_id=agent_id)
        key = secrets.token_hex(6)
        plain = f"{PREFIX}{key}_{secrets.token_urlsafe(32)}"
        token = cls.objects.create(
            key=key,
            agent_id=agent_id,
            digest=digest(plain),
            created_by=str(created_by),
            expires_at=clock.now() + timedelta(days=days) if days else None,
        )
        return token, plain

    @classmethod
    def revoke(cls, key: str) -> AgentToken:
        """Revoked from now on; a repeat changes nothing. Errors: NotFound."""
        cls.objects.filter(pk=key, revoked_at__isnull=True).update(revoked_at=clock.now())
        token = cls.objects.filter(pk=key).first()
        if token is None:
            raise NotFound(f"There is no token {key!r}.", key=key)
        return token

    def state(self, now: datetime) -> Literal["active", "expired", "revoked"]:
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at and self.expires_at <= now else "active"

    def clean(self) -> None:
        if self.expires_at and self.created_at and self.expires_at <= self.created_at:
            raise ValidationError({"expires_at": "It would have expired before it was made."})


def digest(plain: str) -> str:
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()  # what a header may hold is no error


def authenticate(plain: str) -> Actor:
    """The agent that a token belongs to. Errors: TokenRefused."""
    with connection.cursor() as cursor:
        cursor.execute(LOOK_UP, [digest(plain)])
        row = cursor.fetchone()
        if row is None or row[1]:
            raise TokenRefused("token_invalid", "The token is not valid.")
        key, _, expired, agent_id, role, capabilities, touch = row
        if expired:
            raise TokenRefused("token_expired", "The token has expired; ask an operator for a new one.")
        if touch:
            cursor.execute(TOUCH, {"key": key})
    return Actor("agent", agent_id, role=role, capabilities=frozenset(capabilities))
