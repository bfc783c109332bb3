"""What an operator may change of a run without moving it: its place in the queue, and notes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from django.db import connection, transaction

from dispatcher_project.errors import Invalid, PreconditionFailed
from dispatcher_project.pubsub import ring
from governance.actors import Actor
from governance.rules import may_steer
from workflows import states
from workflows.errors import MayNotSteer, MoveNotAllowed
from workflows.lifecycle import fence
from workflows.models import rows
from workflows.models.moves import lock
from workflows.models.rows import Row

EDITABLE = ("gateway_session_id", "gateway_session_active", "current_step", "operator_notes", "priority", "not_before")
OF_THE_QUEUE = ("priority", "not_before")

RUN_NOW = f"""
WITH moved AS (
    UPDATE workflow_runs SET not_before = NULL, updated_at = clock_timestamp()
    WHERE id = %(id)s AND status = 'queued' RETURNING *
)
{rows.SELECT_FROM_MOVED}"""  # noqa: S608  (constants only)


def run_now(run_id: uuid.UUID, *, actor: Actor) -> Row:
    """Clear `not_before` and back-off of a queued run; never a gate.

    Errors: RunNotFound, MayNotSteer, MoveNotAllowed.
    """
    _steering(run_id, actor, "Run now")
    with connection.cursor() as cursor:
        cursor.execute(RUN_NOW, {"id": run_id})
        moved = rows.read(cursor)
    if not moved:
        row = fence.find(run_id)
        shown = states.listed([row["status"]])
        raise MoveNotAllowed(f"Only a queued run can be run now; this one is {shown}.", run=row)
    ring(f"type:{moved[0]['workflow_type']}")
    return moved[0]


def edit(
    run_id: uuid.UUID,
    changes: Mapping[str, Any],
    *,
    actor: Actor,
    is_current: Callable[[Row], bool] = lambda row: True,
) -> Row:
    """Set some of EDITABLE. `is_current`: asked of the locked row, for If-Match.

    Priority and `not_before` only of a queued run. Errors: RunNotFound, MayNotSteer, Invalid, MoveNotAllowed,
    PreconditionFailed.
    """
    unknown = set(changes) - set(EDITABLE)
    if unknown:
        raise Invalid(fields=dict.fromkeys(sorted(unknown), "can't be edited"))
    _steering(run_id, actor, "Editing a run")
    with transaction.atomic():
        lock(run_id)
        row = fence.find(run_id)
        if not is_current(row):
            raise PreconditionFailed("The run has changed since; read it again.", run=row)
        if row["status"] != states.QUEUED and any(name in changes for name in OF_THE_QUEUE):
            shown = states.listed([row["status"]])
            raise MoveNotAllowed(f"Priority and not_before are a queued run's; this one is {shown}.", run=row)
        if changes:
            _write(run_id, changes)
    row = fence.find(run_id)
    ring(f"type:{row['workflow_type']}")
    return row


def _write(run_id: uuid.UUID, changes: Mapping[str, Any]) -> None:
    sets = [f"{name} = %({name})s" for name in EDITABLE if name in changes and name != "not_before"]
    if "not_before" in changes:
        future = "%(not_before)s::timestamptz > clock_timestamp()"
        sets.append(f"not_before = CASE WHEN {future} THEN %(not_before)s::timestamptz END")
    sql = f"UPDATE workflow_runs SET {', '.join(sets)}, updated_at = clock_timestamp() WHERE id = %(id)s"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(sql, {**changes, "id": run_id})


def _steering(run_id: uuid.UUID, actor: Actor, what: str) -> None:
    fence.find(run_id)
    if not may_steer(actor):
        raise MayNotSteer(f"{what} needs an operator or an orchestrator.")
