"""What the API answers, as OpenAPI schemas: columns from the models, the rest by hand.

With API_CAMEL_CASE_TWINS runs and stats also carry their keys in camelCase; the document names the snake_case ones.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from governance.models import Agent, AgentToken, Department
from routing.models import RoutingRule
from workflows import states
from workflows.api import fleet_views, routing_views, run_object, token_views
from workflows.models import RunEvent, RunLease, RunStep, WorkflowArtifact, WorkflowRun

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
ANY: Schema = {"description": "any JSON"}
_TYPES: tuple[tuple[type[models.Field[Any, Any]], Schema], ...] = (
    (models.UUIDField, {"type": "string", "format": "uuid"}),
    (models.BooleanField, FLAG),
    (models.IntegerField, {"type": "integer"}),
    (models.DecimalField, {"type": "number"}),
    (models.DateTimeField, TIME),
    (models.JSONField, ANY),
)


def nullable(schema: Schema) -> Schema:
    return {**schema, "nullable": True}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def many(name: str) -> Schema:
    return {"type": "array", "items": ref(name)}


def listed(plural: str, name: str) -> Schema:
    """A page of a list."""
    link = nullable({"type": "string", "format": "uri"})
    return record({plural: many(name), "next": link, "previous": link})


def record(properties: Schema) -> Schema:
    """An object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _columns(model: type[models.Model], names: tuple[str, ...]) -> Schema:
    return {name: _column(model._meta.get_field(name)) for name in names}


def _column(field: Any) -> Schema:
    schema = next((found for kind, found in _TYPES if isinstance(field, kind)), TEXT)
    if isinstance(field, models.CharField) and field.choices:
        schema = {**TEXT, "enum": [value for value, _ in field.choices]}
    elif getattr(field, "base_field", None) is not None:
        schema = {"type": "array", "items": TEXT}
    return nullable(schema) if field.null else schema


_RUN = {
    **_columns(WorkflowRun, run_object._AS_THEY_ARE),
    "input_payload": ANY,
    "output_summary": {"type": "object"},
    "target_agent_id": nullable(TEXT),
    "routing_priority": {"type": "integer"},
    "max_concurrent": nullable(COUNT),
    "timeout_minutes": COUNT,
    "retry_count": COUNT,
    "max_retries": COUNT,
    "hold_reason": nullable({**TEXT, "description": "why it isn't dispatched; /explain has all of it"}),
    "progress": nullable(record({"percent": nullable({"type": "integer"}), "message": nullable(TEXT)})),
}
_EVENT = ("seq", "verb", "from_status", "to_status", "actor", "reason", "detail", "at")
_LEASE = ("lease_no", "agent_id", "session_id", "timeout_minutes", "claimed_at", "ended_at", "end_verb", "end_reason")
_STEP = ("step_name", "status", "output", "lease_no", "first_at", "last_at")
_BEATEN = {
    "lease_expires_at": TIME,
    "heartbeat_interval_seconds": COUNT,
    "directive": {**TEXT, "enum": ["continue", "pause"]},
}
_REASON = record({"code": TEXT, "detail": TEXT})
_ENFORCEMENT = record({"held": COUNT, "stopped": COUNT, "warned": COUNT})
_TICK = record(
    {
        **dict.fromkeys(("dispatched_count", "retried_count", "released_count", "timed_out_count"), COUNT),
        "budget_enforcement": _ENFORCEMENT,
    }
)
_DISPATCHER = {
    "id": {**TEXT, "format": "uuid"},
    "host": TEXT,
    "pid": COUNT,
    "started_at": TIME,
    "last_seen_at": TIME,
    "last_tick_at": nullable(TIME),
    "last_tick_error": nullable(TEXT),
    "poll_interval_ms": nullable(COUNT),
    "recovery_suspended_until": nullable(TIME),
}
_STATS = {
    **{f"{'pending' if state == states.DISPATCHED else state}_count": COUNT for state in states.STATES},
    **dict.fromkeys(("stale_unclaimed_count", "stale_claimed_count", "route_count", "unroutable_count"), COUNT),
    "dispatch_count": {**COUNT, "description": "runs ever dispatched"},
    "average_claim_latency_seconds": nullable(
        {"type": "number", "description": "from a run's last claimed hand-out to its claim, over all runs"}
    ),
    "failure_rate": {"type": "number", "description": "(failed + timed_out) / dispatch_count"},
    "recovery_suspended": FLAG,
    **dict.fromkeys(("poll_interval_ms", "stale_dispatch_ms", "stale_claim_ms", "max_dispatch_retries"), COUNT),
    "last_tick_at": nullable(TIME),
    "last_tick_error": nullable(TEXT),
    "last_tick_summary": nullable(_TICK),
    "dispatchers": {"type": "array", "items": record(_DISPATCHER)},
}
_TOKEN = {
    **_columns(AgentToken, tuple(name for name in token_views.FIELDS if name != "agent_id")),
    "agent_id": TEXT,
    "state": {**TEXT, "enum": ["active", "expired", "revoked"]},
}
_AGENT = {
    **_columns(Agent, tuple(name for name in fleet_views.AGENT if name != "department_id")),
    "department_id": nullable(TEXT),
    "last_seen_at": nullable(TIME),
}
_PROBLEM = {
    "type": TEXT,
    "title": TEXT,
    "status": {"type": "integer"},
    "detail": TEXT,
    "code": {**TEXT, "description": "stable"},
    "error": {**TEXT, "description": "= detail"},
}


def _with(name: str, more: Schema) -> Schema:
    return {"allOf": [ref(name), record(more)]}


SCHEMAS: dict[str, Schema] = {
    "Problem": {
        **record(_PROBLEM),
        "properties": {
            **_PROBLEM,
            "errors": {"type": "array", "items": record({"field": TEXT, "message": TEXT})},
            "run": {"type": "object", "description": "the run as it is now"},
            "directive": {**TEXT, "enum": ["stop"]},
        },
    },
    "Run": record(_RUN),
    "RunDetail": _with(
        "Run",
        {
            "events": {"type": "array", "items": record(_columns(RunEvent, _EVENT))},
            "leases": {"type": "array", "items": record(_columns(RunLease, _LEASE))},
            "steps": {"type": "array", "items": record(_columns(RunStep, _STEP))},
            "artifacts": many("RunArtifact"),
        },
    ),
    "RunHeld": _with("Run", _BEATEN),
    "RunStuck": _with("Run", {"reasons": {"type": "array", "items": _REASON}}),
    "RunArtifact": record(_columns(WorkflowArtifact, run_object.ARTIFACT)),
    "Runs": record({"runs": many("Run")}),
    "RunPage": listed("runs", "Run"),
    "RunsHeld": record({"updated_runs": COUNT, "runs": many("RunHeld")}),
    "RunsStuck": record({"runs": many("RunStuck"), "more": FLAG}),
    "RunOrRuns": {"oneOf": [ref("Run"), ref("Runs")]},
    "ArtifactPage": listed("artifacts", "RunArtifact"),
    "Explanation": record({"dispatchable": FLAG, "reasons": {"type": "array", "items": _REASON}}),
    "BulkCounts": record(
        {"matched": COUNT, "changed": COUNT, "refused": {"type": "object", "additionalProperties": COUNT}, "more": FLAG}
    ),
    "DispatcherStats": record(_STATS),
    "RoutingRule": record(
        {**_columns(RoutingRule, routing_views.COLUMNS), "warnings": {"type": "array", "items": _REASON}}
    ),
    "RoutingRules": record({"routes": many("RoutingRule")}),
    "Deleted": record({"deleted": FLAG}),
    "AgentProfile": record(_AGENT),
    "AgentPage": listed("agents", "AgentProfile"),
    "DepartmentRow": record(_columns(Department, fleet_views.DEPARTMENT)),
    "DepartmentPage": listed("departments", "DepartmentRow"),
    "AgentToken": record(_TOKEN),
    "AgentTokenIssued": _with("AgentToken", {"token": {**TEXT, "description": "shown this once"}}),
    "AgentTokenPage": listed("tokens", "AgentToken"),
}
