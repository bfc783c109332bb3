"""create: a run enters the queue, once for each idempotency key of its creator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connection

from dispatcher_project import json_values
from dispatcher_project.pubsub import ring
from governance.actors import Actor
from governance.models import Agent
from workflows.errors import IdempotencyConflict, UnknownOwner
from workflows.models import WorkflowRun, rows
from workflows.models.rows import Row
from workflows.models.run import new_id

_INSERT = """
WITH clock AS (SELECT COALESCE(%(now)s::timestamptz, clock_timestamp()) AS at), moved AS (
    INSERT INTO workflow_runs (
        id, workflow_type, owner_agent_id, initiator, status, input_payload, output_summary, priority, not_before,
        max_attempts, dispatch_attempts, lease_no, gateway_session_active, key_space, idempotency_key,
        idempotency_digest, last_seq, queued_at, created_at, updated_at)
    SELECT %(id)s, %(workflow_type)s, %(owner_agent_id)s, %(initiator)s, 'queued', %(input_payload)s::jsonb, '{}',
        %(priority)s, CASE WHEN %(not_before)s::timestamptz > at THEN %(not_before)s::timestamptz END,
        %(max_attempts)s, 0, 0, false, %(key_space)s, %(idempotency_key)s, %(digest)s, 1, at, at, at
    FROM clock
    ON CONFLICT (key_space, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING *
), event AS (
    INSERT INTO workflow_run_events (run_id, seq, verb, to_status, actor, at)
    SELECT id, 1, 'create', 'queued', %(actor)s, created_at FROM moved
)
"""
CREATE = _INSERT + rows.SELECT_FROM_MOVED


@dataclass(frozen=True, slots=True)
class Created:
    """`is_new`: False where the idempotency key had made this run before."""

    run: Row
    is_new: bool


def create(
    workflow_type: str,
    *,
    actor: Actor,
    input_payload: Any = None,
    owner_agent_id: str | None = None,
    initiator: str | None = None,
    priority: int = 0,
    not_before: datetime | None = None,
    max_attempts: int | None = None,
    idempotency_key: str | None = None,
    now: datetime | None = None,
) -> Created:
    """-> queued. Errors: UnknownOwner, IdempotencyConflict (this actor used the key with another body)."""
    if owner_agent_id is not None and not Agent.objects.filter(pk=owner_agent_id).exists():
        raise UnknownOwner(fields={"owner_agent_id": f"there is no agent {owner_agent_id!r}"})
    payload = {} if input_payload is None else input_payload
    said = {
        "workflow_type": workflow_type,
        "input_payload": payload,
        "owner_agent_id": owner_agent_id,
        "initiator": initiator,
        "priority": priority,
        "not_before": not_before and not_before.astimezone(UTC),
        "max_attempts": max_attempts,
    }
    digest = json_values.digest(said) if idempotency_key else None
    parameters: dict[str, Any] = {
        **said,
        "input_payload": json_values.dumps(payload),
        "id": new_id(),
        "key_space": str(actor),
        "actor": str(actor),
        "idempotency_key": idempotency_key,
        "digest": digest,
        "now": now,
    }
    with connection.cursor() as cursor:
        cursor.execute(CREATE, parameters)
        made = rows.read(cursor)
    if made:
        ring(f"type:{workflow_type}")
        return Created(made[0], is_new=True)
    return Created(_made_before(str(actor), idempotency_key, digest), is_new=False)


def _made_before(key_space: str, key: str | None, digest: str | None) -> Row:
    run = WorkflowRun.objects.only("id", "idempotency_digest").get(key_space=key_space, idempotency_key=key)
    row = rows.by_ids([run.pk])[0]
    if run.idempotency_digest != digest:
        raise IdempotencyConflict(
            "This Idempotency-Key was used before with another body; use a new one for new work.", run=row
        )
    return row
