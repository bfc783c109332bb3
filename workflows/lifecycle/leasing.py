"""claim, start, heartbeat: one guarded statement each."""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings

from governance.actors import Actor
from governance.models import Agent
from workflows import states
from workflows.errors import AgentInactive, NotClaimable
from workflows.lifecycle import fence
from workflows.models.moves import move, statement
from workflows.models.rows import Row

CLAIM_PARTS: dict[str, Any] = {
    "picked": {"timeout_minutes": "COALESCE(rule.timeout_minutes, %(timeout_minutes)s)"},
    "sets": {
        "lease_no": "r.lease_no + 1",
        "claimed_at": "p.at",
        "claimed_by": "r.target_agent_id",
        "claim_session_id": "%(session_id)s",
        "gateway_session_id": "%(session_id)s",
        "gateway_session_active": "true",
        "started_at": "NULL",
        "last_heartbeat_at": "NULL",
        "deadline_at": "p.at + p.timeout_minutes * interval '1 minute'",
    },
    "begins_lease": True,
    "reason": "NULL",
    "detail": "jsonb_build_object('lease_no', lease_no, 'session_id', claim_session_id)",
}
CLAIM = statement(
    "claim",
    pick="""r.id = %(id)s
        AND (%(own)s::text IS NULL OR r.target_agent_id = %(own)s)
        AND (%(agent_id)s::text IS NULL OR r.target_agent_id = %(agent_id)s)
        AND NOT EXISTS (
            SELECT FROM agent_profiles agent WHERE agent.agent_id = r.target_agent_id AND NOT agent.active)""",
    **CLAIM_PARTS,
)

START = statement(
    "start",
    pick=fence.HOLDER,
    sets={"started_at": "p.at", "last_heartbeat_at": "p.at"},
    reason="NULL",
)

# A heartbeat is no move, but the first one starts the run; one statement for both, so that no beat needs two.
_BEATEN = {"started_at": "COALESCE(r.started_at, p.at)", "last_heartbeat_at": "p.at"}
HEARTBEAT = statement(
    "start",
    pick=fence.HOLDER,
    also_touches=(states.RUNNING, states.PAUSED),
    sets={
        **_BEATEN,
        "progress_percent": "COALESCE(%(percent)s, r.progress_percent)",
        "progress_message": "COALESCE(%(message)s, r.progress_message)",
    },
    reason="NULL",
)


# Rows that a slower statement holds are being ended or reported on: no reason to wait for them, or to deadlock.
SESSION_HEARTBEAT = statement(
    "start",
    pick="""r.id = ANY(ARRAY(
        SELECT lease.run_id FROM run_leases lease
        WHERE lease.session_id = %(session_id)s AND lease.ended_at IS NULL
            AND (%(own)s::text IS NULL OR lease.agent_id = %(own)s)))
        AND r.claim_session_id = %(session_id)s AND (%(own)s::text IS NULL OR r.claimed_by = %(own)s)""",
    also_touches=(states.RUNNING, states.PAUSED),
    sets=_BEATEN,
    reason="NULL",
    skip_locked=True,
)


def claim(
    run_id: uuid.UUID,
    *,
    session_id: str,
    actor: Actor,
    agent_id: str | None = None,
    now: datetime | None = None,
) -> Row:
    """dispatched -> claimed, under a new lease of `session_id`. The same claim again is answered like the first.

    `agent_id`: whom it is claimed for; must be the run's target. Errors: RunNotFound, NotClaimable, AgentInactive.
    """
    parameters = {
        "id": run_id,
        "session_id": session_id,
        "agent_id": agent_id,
        "own": fence.own(actor),
        "timeout_minutes": settings.MONITOR_STALE_TIMEOUT_MINUTES,
        "actor": str(actor),
        "now": now,
    }
    moved = move(CLAIM, parameters)
    return moved[0] if moved else _claimed_before(run_id, session_id=session_id, actor=actor, agent_id=agent_id)


def _claimed_before(run_id: uuid.UUID, *, session_id: str, actor: Actor, agent_id: str | None) -> Row:
    row = fence.find(run_id)
    run = fence.present(row, actor)
    target = fence.target_of(row)
    if fence.own(actor) not in (None, target) or agent_id not in (None, target):
        raise NotClaimable(f"The run is not for agent {agent_id or actor.id!r}.", run=run)
    if row["claim_session_id"] == session_id and not states.is_final(row["status"]):
        return row
    if row["status"] != states.DISPATCHED:
        raise NotClaimable(states.refusal("claim", row["status"]), run=run)
    agent = Agent.objects.filter(pk=target, active=False).first()
    if agent is None:  # it came back to dispatched after our attempt
        raise NotClaimable("The run is being handed out again; poll for it.", run=run)
    because = f": {agent.inactive_reason}" if agent.inactive_reason else ""
    raise AgentInactive(f"Agent {target!r} is inactive{because}.", run=run)


def start(
    run_id: uuid.UUID, *, session_id: str, actor: Actor, lease_no: int | None = None, now: datetime | None = None
) -> Row:
    """claimed -> running; a repeat by the holder is answered the same. Errors: RunNotFound, LeaseLost, RunEnded."""
    holder = {"id": run_id, "session_id": session_id, "lease_no": lease_no, "own": fence.own(actor)}
    moved = move(START, {**holder, "actor": str(actor), "now": now})
    if moved:
        return moved[0]
    row = fence.find(run_id)
    if row["status"] == states.RUNNING and fence.holds(row, session_id=session_id, lease_no=lease_no, actor=actor):
        return row
    raise fence.refusal(run_id, "start", session_id=session_id, lease_no=lease_no, actor=actor)


def session_heartbeat(session_id: str, *, actor: Actor, now: datetime | None = None) -> list[Row]:
    """Every run that this session of the actor's agent holds is alive; the runs, oldest claim first."""
    moved = move(
        SESSION_HEARTBEAT,
        {"session_id": session_id, "own": fence.own(actor), "actor": str(actor), "now": now},
        moves=_has_just_started,
    )
    return sorted(moved, key=lambda row: (row["claimed_at"], row["id"]))


def heartbeat(
    run_id: uuid.UUID,
    *,
    session_id: str,
    actor: Actor,
    lease_no: int | None = None,
    percent: int | Decimal | None = None,
    message: str | None = None,
    now: datetime | None = None,
) -> Row:
    """The holder is alive; the first one starts the run. `percent`: 0 to 100.

    Errors: RunNotFound, LeaseLost, RunEnded.
    """
    moved = move(
        HEARTBEAT,
        {
            "id": run_id,
            "session_id": session_id,
            "lease_no": lease_no,
            "own": fence.own(actor),
            "percent": None if percent is None else round(percent),
            "message": message,
            "actor": str(actor),
            "now": now,
        },
        moves=_has_just_started,
    )
    if not moved:
        raise fence.refusal(run_id, "start", session_id=session_id, lease_no=lease_no, actor=actor)
    return moved[0]


def _has_just_started(row: Row) -> bool:
    """Whether this heartbeat was the first: it set both times to the same moment."""
    return row["status"] == states.RUNNING and row["started_at"] == row["last_heartbeat_at"]
