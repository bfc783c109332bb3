"""The last touches to the OpenAPI document: what each operation answers, may refuse with, and an example of its body.

A hook of drf-spectacular. The errors follow from an operation's method and path, as they do in the code.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from dispatcher_project.api_errors import CONTENT_TYPE
from workflows.api.answers import SCHEMAS, ref

RUNS = "/api/workflow-runs"
# {(path, method): the schema that it answers with}; a run where nothing else is said.
ANSWERS: dict[tuple[str, str], str] = {
    (RUNS, "get"): "RunPage",
    (f"{RUNS}/pending", "get"): "Runs",
    (f"{RUNS}/claim-next", "post"): "RunOrRuns",
    (f"{RUNS}/active", "get"): "RunPage",
    (f"{RUNS}/stuck", "get"): "RunsStuck",
    (f"{RUNS}/bulk", "post"): "BulkCounts",
    (f"{RUNS}/dispatcher/stats", "get"): "DispatcherStats",
    (f"{RUNS}/{{run_id}}", "get"): "RunDetail",
    (f"{RUNS}/{{run_id}}/explain", "get"): "Explanation",
    (f"{RUNS}/{{run_id}}/heartbeat", "post"): "RunHeld",
    (f"{RUNS}/{{run_id}}/artifacts", "get"): "ArtifactPage",
    (f"{RUNS}/{{run_id}}/artifacts", "post"): "RunArtifact",
    ("/api/sessions/{session_id}/heartbeat", "post"): "RunsHeld",
    ("/api/workflow-routing", "get"): "RoutingRules",
    ("/api/workflow-routing", "put"): "RoutingRule",
    ("/api/workflow-routing/{workflow_type}", "get"): "RoutingRule",
    ("/api/workflow-routing/{workflow_type}", "patch"): "RoutingRule",
    ("/api/workflow-routing/{workflow_type}", "delete"): "Deleted",
    ("/api/agents", "get"): "AgentPage",
    ("/api/agents", "post"): "AgentProfile",
    ("/api/agents/{agent_id}", "get"): "AgentProfile",
    ("/api/agents/{agent_id}", "patch"): "AgentProfile",
    ("/api/agents/{agent_id}/tokens", "get"): "AgentTokenPage",
    ("/api/agents/{agent_id}/tokens", "post"): "AgentTokenIssued",
    ("/api/agents/{agent_id}/tokens/{key}", "delete"): "AgentToken",
    ("/api/departments", "get"): "DepartmentPage",
    ("/api/departments", "post"): "DepartmentRow",
    ("/api/departments/{department_id}", "get"): "DepartmentRow",
    ("/api/departments/{department_id}", "patch"): "DepartmentRow",
}
WHY = {
    400: "bad input: `errors` names the fields; an unknown query parameter is bad input, too",
    401: "no credentials (`not_authenticated`), wrong ones (`token_invalid`), old ones (`token_expired`)",
    403: "not by this agent",
    404: "there is none, or not for you to see",
    409: "the run's state, its lease or an existing row doesn't allow it; `run` is the run as it is",
    412: "it changed since the version in `If-Match`",
    413: "the body is larger than 5 MiB",
    415: "the body isn't application/json",
    503: "the database is away or the server busy or stopping; again after `Retry-After` seconds",
}
# By the name of the body's schema. A test reads each of them as the endpoint does.
SESSION = {"session_id": "agent:writer:main", "lease_no": 1}
EXAMPLES: dict[str, dict[str, Any]] = {
    "Create": {"workflow_type": "doc", "input_payload": {"title": "Release notes"}, "priority": 5, "max_retries": 2},
    "Claim": {"session_id": "agent:writer:main"},
    "ClaimNext": {"session_id": "agent:writer:main", "workflow_types": ["doc"], "wait": 30},
    "Start": SESSION,
    "Heartbeat": {**SESSION, "progress": {"percent": 40, "message": "half of the chapters"}},
    "Complete": {**SESSION, "output_summary": {"pages": 12, "url": "https://files.example/notes.pdf"}},
    "Fail": {**SESSION, "error": "the source is not reachable", "retryable": True, "retry_after_seconds": 60},
    "Release": {**SESSION, "reason": "shutting down"},
    "Step": {**SESSION, "step_name": "outline", "status": "done", "output": {"chapters": 3}},
    "Artifact": {**SESSION, "uri": "s3://results/notes.pdf", "artifact_type": "report", "metadata": {"pages": 12}},
    "GatewaySession": {"session_id": "agent:writer:main"},
    "PatchedEdit": {"priority": 10, "operator_notes": "asked for by sales"},
    "Cancel": {"reason": "not needed any more"},
    "Bulk": {"action": "cancel", "filter": {"status": ["queued"], "workflow_type": "doc"}, "reason": "wrong input"},
    "Route": {"workflow_type": "doc", "agent_id": "writer", "max_concurrent": 2, "timeout_minutes": 30},
    "PatchedRoute": {"active": False, "inactive_reason": "the source is down"},
    "Agent": {"agent_id": "writer", "display_name": "Writer", "role": "specialist", "max_concurrent": 3},
    "PatchedAgent": {"active": False, "reason": "on holiday"},
    "Department": {"department_id": "docs", "name": "Documentation"},
    "PatchedDepartment": {"name": "Documentation and translation"},
    "Token": {"days": 90},
}


def complete(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's postprocessing hook."""
    result["components"]["schemas"] |= SCHEMAS
    for path, operations in result["paths"].items():
        for method, operation in operations.items():
            _answer(operation, ANSWERS.get((path, method), "Run"))
            for status in refusals(path, method, operation):
                operation["responses"][str(status)] = _problem(status)
            _example(operation)
    return result


def refusals(path: str, method: str, operation: dict[str, Any]) -> list[int]:
    """The statuses beside success that an operation may answer with."""
    found = [400, 401, 503]
    if method != "get" or path.endswith(("/pending", "/tokens")):
        found.append(403)
    if "{" in path and "/sessions/" not in path:
        found.append(404)
    if _may_conflict(path, method):
        found.append(409)
    if method == "patch" or (path.startswith("/api/workflow-routing") and method != "get"):
        found.append(412)
    if method != "get":
        found += [413, 415]
    return found


def _may_conflict(path: str, method: str) -> bool:
    if path.startswith(RUNS):
        return method != "get" and not path.endswith(("/claim-next", "/bulk"))
    return (path, method) in {("/api/agents", "post"), ("/api/departments", "post")}


def _answer(operation: dict[str, Any], name: str) -> None:
    for status, response in operation["responses"].items():
        if status in ("200", "201"):
            response["content"] = {"application/json": {"schema": ref(name)}}
            response["description"] = response.get("description") or HTTPStatus(int(status)).phrase


def _problem(status: int) -> dict[str, Any]:
    return {"description": WHY[status], "content": {CONTENT_TYPE: {"schema": ref("Problem")}}}


def _example(operation: dict[str, Any]) -> None:
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        if name in EXAMPLES:
            content["example"] = EXAMPLES[name]
