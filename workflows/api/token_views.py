"""/api/agents/{id}/tokens: for operators. Several live tokens of one agent are how one is replaced without a gap."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from dispatcher_project import clock
from dispatcher_project.errors import NotFound
from governance.models import Agent, AgentToken
from workflows.api import describe, edits, pages, query, shapes
from workflows.api.permissions import OperatorsOnly
from workflows.api.view import View, actor_of, body_of, name_of

FIELDS = ("key", "agent_id", "created_by", "created_at", "expires_at", "revoked_at", "last_used_at")


class Tokens(View):
    permission_classes = [OperatorsOnly]
    parameters: ClassVar = {"list": ("limit", "cursor")}

    @describe.tokens
    def list(self, request: Request, agent_id: str) -> Response:
        """Oldest first. `state`: active, expired or revoked."""
        agent = edits.get(Agent, name_of(agent_id, "agent"))
        limit = query.limit(self.query, default=query.MAX_LIMIT)
        order = pages.Order(("created_at", "key"))
        page = pages.cut(AgentToken.objects.of(agent.pk), order, request=request, query=self.query, limit=limit)
        found = AgentToken.objects.in_bulk(page.items)
        shown = [_shown(found[key]) for key in page.items if key in found]
        return Response({"tokens": shown, "next": page.next, "previous": page.previous})

    @describe.issue_token
    def create(self, request: Request, agent_id: str) -> Response:
        """`token` is shown this once. Others of the agent stay valid until they expire or are deleted."""
        days = shapes.Token.read(body_of(request)).get("days")
        made, plain = AgentToken.issue(name_of(agent_id, "agent"), days=days, created_by=actor_of(request))
        return Response({**_shown(made), "token": plain}, status=201)

    @describe.revoke_token
    def destroy(self, request: Request, agent_id: str, key: str) -> Response:
        """Revoked from now on; a repeat is answered the same."""
        key = name_of(key, "token")
        if not AgentToken.objects.of(name_of(agent_id, "agent")).filter(pk=key).exists():
            raise NotFound(f"Agent {agent_id[:100]!r} has no token {key!r}.")
        return Response(_shown(AgentToken.revoke(key)))


def _shown(token: AgentToken) -> dict[str, Any]:
    return {**{name: getattr(token, name) for name in FIELDS}, "state": token.state(clock.now())}
