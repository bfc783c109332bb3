"""cancel: an operator's, and later a budget's, word."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.db import transaction

from dispatcher_project.pubsub import ring
from governance.actors import Actor
from governance.rules import may_steer
from workflows import states
from workflows.errors import MayNotSteer, RunEnded
from workflows.lifecycle import fence
from workflows.models.moves import lock, move, statement
from workflows.models.rows import Row

CANCEL = statement(
    "cancel",
    pick="r.id = %(id)s",
    sets={"finished_at": "p.at", "gateway_session_active": "false"},
    ends_lease=True,
)


def cancel(run_id: uuid.UUID, *, actor: Actor, reason: str | None = None, now: datetime | None = None) -> Row:
    """Every state that isn't final -> cancelled; a repeat is answered the same and leaves no second trace.

    Errors: RunNotFound, MayNotSteer, RunEnded (it ended otherwise).
    """
    row = fence.find(run_id)
    if not may_steer(actor):
        raise MayNotSteer("Cancelling needs an operator or an orchestrator.")
    with transaction.atomic():
        lock(run_id)
        moved = move(CANCEL, {"id": run_id, "actor": str(actor), "reason": reason, "now": now})
    if moved:
        ring(f"type:{row['workflow_type']}", f"agent:{moved[0]['target_agent_id'] or fence.target_of(row)}")
        return moved[0]
    row = fence.find(run_id)
    if row["status"] != states.CANCELLED:
        raise RunEnded(f"The run has ended: it is {states.listed([row['status']])}.", run=row)
    return row
