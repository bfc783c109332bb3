"""/api/agents and /api/departments: who works here. Operators edit."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dispatcher_project.errors import Invalid
from dispatcher_project.pubsub import ring
from governance.models import Agent, Department
from workflows.api import edits, pages, query, shapes
from workflows.api.describe import IF_MATCH, PAGE, described
from workflows.api.permissions import OperatorsWrite
from workflows.api.view import View, body_of, name_of

AGENT = (
    "agent_id", "display_name", "role", "capabilities", "department_id", "active", "inactive_reason",
    "max_concurrent", "version", "created_at", "updated_at",
)  # fmt: skip
DEPARTMENT = ("department_id", "name", "version", "created_at", "updated_at")


class Agents(View):
    permission_classes = [OperatorsWrite]
    parameters: ClassVar = {"list": ("limit", "cursor")}

    @described(operation_id="agents_list", parameters=[*PAGE])
    def list(self, request: Request) -> Response:
        agents = Agent.objects.select_related("activity")
        return Response(_page(self, request, agents, "agent_id", "agents", _agent))

    @described(body=shapes.Agent, status=201)
    def create(self, request: Request) -> Response:
        values = _agent_values(shapes.Agent.read(body_of(request)))
        return _edited(edits.create(Agent, values), status=201)

    @described()
    def retrieve(self, request: Request, agent_id: str) -> Response:
        return _answer(edits.get(Agent, name_of(agent_id, "agent")))

    @described(body=shapes.Agent, parameters=[IF_MATCH])
    def partial_update(self, request: Request, agent_id: str) -> Response:
        """`active` false with a `reason` pauses it: nothing is handed to it, what it runs may finish."""
        agent_id = name_of(agent_id, "agent")
        values = _agent_values(shapes.Agent.read({**body_of(request), "agent_id": agent_id}, partial=True))
        values.pop("agent_id")
        return _edited(edits.edit(Agent, agent_id, values, expected=edits.expected_versions(request)))


class Departments(View):
    permission_classes = [OperatorsWrite]
    parameters: ClassVar = {"list": ("limit", "cursor")}

    @described(operation_id="departments_list", parameters=[*PAGE])
    def list(self, request: Request) -> Response:
        return Response(_page(self, request, Department.objects.all(), "department_id", "departments", _department))

    @described(body=shapes.Department, status=201)
    def create(self, request: Request) -> Response:
        made = edits.create(Department, shapes.Department.read(body_of(request)))
        return _department_answer(made, status=201)

    @described()
    def retrieve(self, request: Request, department_id: str) -> Response:
        return _department_answer(edits.get(Department, name_of(department_id, "department")))

    @described(body=shapes.Department, parameters=[IF_MATCH])
    def partial_update(self, request: Request, department_id: str) -> Response:
        department_id = name_of(department_id, "department")
        values = shapes.Department.read({**body_of(request), "department_id": department_id}, partial=True)
        values.pop("department_id")
        return _department_answer(
            edits.edit(Department, department_id, values, expected=edits.expected_versions(request))
        )


def _page(view: View, request: Request, queryset: QuerySet[Any], key: str, plural: str, show: Any) -> dict[str, Any]:
    limit = query.limit(view.query, default=query.MAX_LIMIT)
    page = pages.cut(queryset, pages.Order((key,)), request=request, query=view.query, limit=limit)
    found = queryset.in_bulk(page.items)
    return {plural: [show(found[pk]) for pk in page.items if pk in found], "next": page.next, "previous": page.previous}


def _agent_values(said: dict[str, Any]) -> dict[str, Any]:
    """`reason` is `inactive_reason`; an agent that is switched on has none."""
    if "reason" in said:
        said.setdefault("inactive_reason", said.pop("reason"))
        said.pop("reason", None)
    if said.get("active") is True:
        said["inactive_reason"] = ""
    department = said.get("department_id")
    if department is not None and not Department.objects.filter(pk=department).exists():
        raise Invalid(fields={"department_id": f"there is no department {department!r}"})
    return said


def _edited(agent: Agent, status: int = 200) -> Response:
    ring(f"agent:{agent.pk}")
    return _answer(agent, status)


def _answer(agent: Agent, status: int = 200) -> Response:
    return Response(_agent(agent), status=status, headers={"ETag": edits.etag(agent)})


def _agent(agent: Agent) -> dict[str, Any]:
    activity = getattr(agent, "activity", None)
    return {
        **{name: getattr(agent, name) for name in AGENT},
        "last_seen_at": activity.last_seen_at if activity else None,
    }


def _department_answer(department: Department, status: int = 200) -> Response:
    return Response(_department(department), status=status, headers={"ETag": edits.etag(department)})


def _department(department: Department) -> dict[str, Any]:
    return {name: getattr(department, name) for name in DEPARTMENT}
