"""/api/workflow-routing: which agent takes which type. Operators edit; every edit rings for the type's waiting runs."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dispatcher_project.pubsub import ring
from governance.models import Agent
from routing.models import RoutingRule
from workflows.api import edits, shapes
from workflows.api.describe import IF_MATCH, described
from workflows.api.permissions import OperatorsWrite
from workflows.api.view import View, body_of, name_of

COLUMNS = (
    "workflow_type", "agent_id", "priority", "max_concurrent", "timeout_minutes", "max_attempts", "active",
    "inactive_reason", "version", "created_at", "updated_at",
)  # fmt: skip


class Routes(View):
    permission_classes = [OperatorsWrite]

    @described(operation_id="workflow_routing_list")
    def list(self, request: Request) -> Response:
        """All of them, the strongest first."""
        return Response({"routes": _shown(list(RoutingRule.objects.order_by("-priority", "workflow_type")))})

    @described(body=shapes.Route, parameters=[IF_MATCH])
    def upsert(self, request: Request) -> Response:
        """Makes the type's rule or edits it; what an edit leaves out keeps its value."""
        values = _given(shapes.Route.read(body_of(request)))
        return _edited(edits.upsert(RoutingRule, values, expected=edits.expected_versions(request)))

    @described()
    def retrieve(self, request: Request, workflow_type: str) -> Response:
        return _answer(edits.get(RoutingRule, name_of(workflow_type, "rule")))

    @described(body=shapes.Route, parameters=[IF_MATCH])
    def partial_update(self, request: Request, workflow_type: str) -> Response:
        workflow_type = name_of(workflow_type, "rule")
        values = shapes.Route.read({**body_of(request), "workflow_type": workflow_type}, partial=True)
        values.pop("workflow_type")
        return _edited(
            edits.edit(RoutingRule, workflow_type, _given(values), expected=edits.expected_versions(request))
        )

    @described(parameters=[IF_MATCH])
    def destroy(self, request: Request, workflow_type: str) -> Response:
        workflow_type = name_of(workflow_type, "rule")
        edits.delete(RoutingRule, workflow_type, expected=edits.expected_versions(request))
        ring(f"type:{workflow_type}")
        return Response({"deleted": True})


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """A rule that is switched on again has no reason to be off any more."""
    return {"inactive_reason": "", **values} if values.get("active") is True else values


def _edited(rule: RoutingRule) -> Response:
    ring(f"type:{rule.pk}")
    return _answer(rule)


def _answer(rule: RoutingRule) -> Response:
    return Response(_shown([rule])[0], headers={"ETag": edits.etag(rule)})


def _shown(rules: list[RoutingRule]) -> list[dict[str, Any]]:
    known = set(Agent.objects.filter(pk__in={rule.agent_id for rule in rules}).values_list("pk", flat=True))
    return [{**{name: getattr(rule, name) for name in COLUMNS}, "warnings": _warnings(rule, known)} for rule in rules]


def _warnings(rule: RoutingRule, known: set[str]) -> list[dict[str, str]]:
    if rule.agent_id in known:
        return []
    detail = f"There is no agent {rule.agent_id!r}: its runs are handed out, and fail if nobody claims them for it."
    return [{"code": "unknown_agent", "detail": detail}]
