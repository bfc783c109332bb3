"""dispatch: the only hand-out there is; and promote, which makes parked runs ready when their time has come."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from django.db import connection

from governance.actors import Actor
from workflows.models.moves import move, statement
from workflows.models.rows import Row

DISPATCH = statement(
    "dispatch",
    pick="r.id = ANY(%(ids)s) AND r.not_before IS NULL",
    sets={
        "target_agent_id": "%(agent_id)s",
        "dispatched_at": "p.at",
        "dispatch_attempts": "r.dispatch_attempts + 1",
        "charge_agent_id": "%(agent_id)s",
        "charge_department_id": "%(department_id)s",
        "charge_project": "r.workflow_type",
    },
    reason="NULL",
    answers_payloads=False,
    detail="jsonb_build_object('agent_id', target_agent_id, 'attempt', dispatch_attempts)",
)

PROMOTE = """
UPDATE workflow_runs SET not_before = NULL, updated_at = COALESCE(%(now)s::timestamptz, clock_timestamp())
WHERE id = ANY(ARRAY(
    SELECT id FROM workflow_runs
    WHERE status = 'queued' AND not_before IS NOT NULL
        AND not_before <= COALESCE(%(now)s::timestamptz, clock_timestamp())
    ORDER BY not_before LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
))
"""


def dispatch(
    ids: Sequence[uuid.UUID], *, agent_id: str, department_id: str | None, actor: Actor, now: datetime | None = None
) -> list[Row]:
    """queued -> dispatched to `agent_id`, one attempt each, the charge scope fixed.

    For the dispatch phase alone: it holds the slots of type and agent and has asked `admission`.
    """
    return move(
        DISPATCH,
        {"ids": list(ids), "agent_id": agent_id, "department_id": department_id, "actor": str(actor), "now": now},
    )


def promote(*, limit: int, now: datetime | None = None) -> int:
    """Clear `not_before` where it has passed; how many. No move: the runs stay queued, at their place."""
    with connection.cursor() as cursor:
        cursor.execute(PROMOTE, {"limit": limit, "now": now})
        return cursor.rowcount
