"""Who may call at all. What a verb needs beyond that, the verb asks itself (`governance.rules`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from governance.actors import Actor
from governance.rules import may_configure

if TYPE_CHECKING:
    from rest_framework.views import APIView  # which imports this module, by the settings


class IsKnownActor(BasePermission):
    """Agents, and staff; staff without the operator's permission read only."""

    message = "Your account may read only."

    def has_permission(self, request: Request, view: APIView) -> bool:
        actor = request.user
        if not isinstance(actor, Actor):
            return False
        return request.method in SAFE_METHODS or actor.kind != "staff" or actor.operates


class OperatorsWrite(IsKnownActor):
    """Everybody known reads; operators (agent or staff) write."""

    message = "This needs an operator."

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not super().has_permission(request, view):
            return False
        assert isinstance(request.user, Actor)  # noqa: S101  (for the type checker: super() looked)
        return request.method in SAFE_METHODS or may_configure(request.user)


class OperatorsOnly(OperatorsWrite):
    """Nobody else, not even to read."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return super().has_permission(request, view) and isinstance(request.user, Actor) and may_configure(request.user)
