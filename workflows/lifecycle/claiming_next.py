"""claim-next: the next dispatched runs for a session, in the order of the poll, claimed in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings

from governance.actors import Actor
from workflows.lifecycle import fence
from workflows.lifecycle.leasing import CLAIM_PARTS
from workflows.models import rows
from workflows.models.moves import move, statement
from workflows.models.rows import Row

_MINE = """(%(own)s::text IS NULL OR {run}.{agent} = %(own)s)
    AND (%(agent_id)s::text IS NULL OR {run}.{agent} = %(agent_id)s)
    AND (%(types)s::text[] IS NULL OR {run}.workflow_type = ANY(%(types)s))"""

# A reply that got lost loses nothing: what the session has claimed, and hasn't made a call on yet, comes first; in the
# same order, which the times of the claims don't tell.
UNHEARD = f"""run.claim_session_id = %(session_id)s AND run.status = 'claimed' AND run.last_heartbeat_at IS NULL
    AND run.claimed_at > COALESCE(%(now)s::timestamptz, clock_timestamp())
        - %(stale_claim_ms)s * interval '1 millisecond'
    AND {_MINE.format(run="run", agent="claimed_by")}
ORDER BY COALESCE(rule.priority, 0) DESC, run.priority DESC, run.dispatched_at, run.created_at, run.id
LIMIT %(limit)s"""

CLAIM_NEXT = statement(
    "claim",
    pick=f"""r.id = ANY(ARRAY(
        SELECT next.id FROM workflow_runs next
        LEFT JOIN workflow_agent_routing route ON route.workflow_type = next.workflow_type
        WHERE next.status = 'dispatched' AND {_MINE.format(run="next", agent="target_agent_id")}
            AND NOT EXISTS (
                SELECT FROM agent_profiles agent WHERE agent.agent_id = next.target_agent_id AND NOT agent.active)
        ORDER BY COALESCE(route.priority, 0) DESC, next.priority DESC, next.dispatched_at, next.created_at, next.id
        LIMIT %(limit)s
        FOR NO KEY UPDATE OF next SKIP LOCKED))""",  # noqa: S608  (constants only)
    **CLAIM_PARTS,
)


def claim_next(
    *,
    session_id: str,
    actor: Actor,
    agent_id: str | None = None,
    workflow_types: Sequence[str] | None = None,
    limit: int = 1,
    now: datetime | None = None,
) -> list[Row]:
    """Up to `limit` runs claimed for `session_id`, none when there is none. dispatched -> claimed.

    First, and then alone, what this session claimed within the stale limit and made no call on yet.
    """
    parameters: dict[str, Any] = {
        "session_id": session_id,
        "agent_id": agent_id,
        "own": fence.own(actor),
        "types": None if workflow_types is None else list(workflow_types),
        "limit": limit,
        "stale_claim_ms": settings.DISPATCHER_STALE_CLAIM_MS,
        "timeout_minutes": settings.MONITOR_STALE_TIMEOUT_MINUTES,
        "actor": str(actor),
        "now": now,
    }
    unheard = rows.select(UNHEARD, parameters)
    if unheard:
        return unheard
    return sorted(move(CLAIM_NEXT, parameters), key=_poll_order)


def _poll_order(row: Row) -> tuple[Any, ...]:
    return (-(row["routing_priority"] or 0), -row["priority"], row["dispatched_at"], row["created_at"], row["id"])
