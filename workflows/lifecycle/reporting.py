"""What a holder reports on its way, beside heartbeats: steps and artifacts; and which gateway session works on it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import connection

from dispatcher_project import json_values
from governance.actors import Actor
from governance.rules import may_steer
from workflows import states
from workflows.errors import LeaseLost, RunEnded
from workflows.lifecycle import fence
from workflows.models import rows
from workflows.models.rows import Row

MAX_URIS = 100
MAX_URI = 2000

# Under the holder's row lock, so that a step of a lost lease can't slip in behind its successor's.
_HELD = f"""
WITH held AS MATERIALIZED (
    SELECT locked.*, COALESCE(%(now)s::timestamptz, clock_timestamp()) AS at FROM (
        SELECT r.id, r.lease_no FROM workflow_runs r
        WHERE r.status IN ('claimed', 'running', 'paused') AND {fence.HOLDER}
        FOR NO KEY UPDATE
    ) locked
)"""  # noqa: S608  (constants only)
STEP = f"""{_HELD}, moved AS (
    UPDATE workflow_runs r SET current_step = %(step_name)s, last_heartbeat_at = held.at, updated_at = held.at
    FROM held WHERE r.id = held.id RETURNING r.*
), step AS (
    INSERT INTO workflow_run_steps (run_id, step_name, status, output, lease_no, first_at, last_at)
    SELECT id, %(step_name)s, %(status)s, %(output)s::jsonb, lease_no, at, at FROM held
    ON CONFLICT (run_id, step_name) DO UPDATE SET status = excluded.status, lease_no = excluded.lease_no,
        output = COALESCE(excluded.output, workflow_run_steps.output), last_at = excluded.last_at
)
{rows.SELECT_FROM_MOVED}"""  # noqa: S608
ARTIFACT = f"""{_HELD}, touched AS (
    UPDATE workflow_runs r SET last_heartbeat_at = held.at, updated_at = held.at FROM held WHERE r.id = held.id
)
INSERT INTO workflow_artifacts (run_id, artifact_type, label, uri, metadata, created_by, created_at)
SELECT id, %(artifact_type)s, %(label)s, %(uri)s, %(metadata)s::jsonb, %(actor)s, at FROM held
ON CONFLICT (run_id, uri) DO UPDATE SET artifact_type = excluded.artifact_type, label = excluded.label,
    metadata = excluded.metadata
RETURNING id, artifact_type, label, uri, metadata, created_by, created_at"""  # noqa: S608
COLLECT = """
INSERT INTO workflow_artifacts (run_id, artifact_type, label, uri, metadata, created_by, created_at)
SELECT %(id)s, 'url', label, uri, '{}', %(actor)s, %(at)s
FROM unnest(%(labels)s::text[], %(uris)s::text[]) found (label, uri)
ON CONFLICT (run_id, uri) DO NOTHING"""
BIND = f"""
WITH moved AS (
    UPDATE workflow_runs r SET gateway_session_active = %(active)s, updated_at = clock_timestamp(),
        gateway_session_id = CASE WHEN %(active)s THEN %(gateway_session_id)s ELSE r.gateway_session_id END
    WHERE r.id = %(id)s AND r.status IN ('claimed', 'running', 'paused')
        AND (%(own)s::text IS NULL OR r.claimed_by = %(own)s)
        AND (%(active)s OR r.gateway_session_id = %(gateway_session_id)s)
    RETURNING r.*
)
{rows.SELECT_FROM_MOVED}"""  # noqa: S608


def step(
    run_id: uuid.UUID,
    *,
    session_id: str,
    actor: Actor,
    step_name: str,
    status: str | None = None,
    output: Any = None,
    lease_no: int | None = None,
    now: datetime | None = None,
) -> Row:
    """The holder is at this step: `current_step`, and the step's row. Errors: RunNotFound, LeaseLost, RunEnded."""
    with connection.cursor() as cursor:
        cursor.execute(
            STEP,
            {
                **_holder(run_id, session_id, lease_no, actor, now),
                "step_name": step_name,
                "status": status,
                "output": None if output is None else json_values.dumps(output),
            },
        )
        moved = rows.read(cursor)
    if not moved:
        raise fence.refusal(run_id, "complete", session_id=session_id, lease_no=lease_no, actor=actor)
    return moved[0]


def artifact(
    run_id: uuid.UUID,
    *,
    session_id: str,
    actor: Actor,
    uri: str,
    artifact_type: str = "url",
    label: str = "",
    metadata: Mapping[str, Any] | None = None,
    lease_no: int | None = None,
    now: datetime | None = None,
) -> Row:
    """An artifact of the holder's run; the same address again replaces what was said of it. Errors: as `step`."""
    with connection.cursor() as cursor:
        cursor.execute(
            ARTIFACT,
            {
                **_holder(run_id, session_id, lease_no, actor, now),
                "uri": uri,
                "artifact_type": artifact_type,
                "label": label,
                "metadata": json_values.dumps(dict(metadata or {})),
                "actor": str(actor),
            },
        )
        made = rows.read(cursor)
    if not made:
        raise fence.refusal(run_id, "complete", session_id=session_id, lease_no=lease_no, actor=actor)
    return made[0]


def collect_artifacts(row: Row, found: Mapping[str, str], *, actor: Actor) -> None:
    """The addresses of an output as artifacts of its run; those that it has already stay as they are."""
    with connection.cursor() as cursor:
        cursor.execute(
            COLLECT,
            {
                "id": row["id"],
                "actor": str(actor),
                "at": row["finished_at"],
                "uris": list(found),
                "labels": [label[:200] for label in found.values()],
            },
        )


def addresses(output: Any) -> dict[str, str]:
    """{address: path of its key} of the texts in `output` that are one http(s) address; the first MAX_URIS."""
    found: dict[str, str] = {}
    stack: list[tuple[str, Any]] = [("", output)]
    while stack and len(found) < MAX_URIS:
        path, value = stack.pop()
        if isinstance(value, str) and _is_address(value):
            found.setdefault(value, path)
        elif isinstance(value, dict | list):
            pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
            stack += [(f"{path}.{key}" if path else str(key), item) for key, item in reversed(pairs)]
    return found


def _is_address(text: str) -> bool:
    return (
        text.startswith(("http://", "https://"))
        and len(text) <= MAX_URI
        and not any(character.isspace() for character in text)
    )


def bind_session(run_id: uuid.UUID, *, gateway_session_id: str, actor: Actor, active: bool) -> Row:
    """Bind a gateway session to a run under a lease, or unbind it; never touches the lease itself.

    For the holder's agent and for who may steer. Unbinding another session than the bound one changes nothing.
    Errors: RunNotFound, RunEnded, LeaseLost.
    """
    parameters: dict[str, Any] = {
        "id": run_id,
        "gateway_session_id": gateway_session_id,
        "active": active,
        "own": fence.own(actor),
    }
    with connection.cursor() as cursor:
        cursor.execute(BIND, parameters)
        moved = rows.read(cursor)
    if moved:
        return moved[0]
    row = fence.find(run_id)
    run = fence.present(row, actor)
    if states.is_final(row["status"]):
        raise RunEnded(f"The run has ended: it is {states.listed([row['status']])}.", run=run)
    if row["claim_session_id"] is None or not (may_steer(actor) or row["claimed_by"] == actor.id):
        raise LeaseLost("Only the agent that holds the run, or an operator, may bind a session to it.", run=run)
    return row


def _holder(
    run_id: uuid.UUID, session_id: str, lease_no: int | None, actor: Actor, now: datetime | None
) -> dict[str, Any]:
    return {"id": run_id, "session_id": session_id, "lease_no": lease_no, "own": fence.own(actor), "now": now}
