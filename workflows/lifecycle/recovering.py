"""Recovery only gives back (recall, release, exhaust) and times out; the dispatch phase hands out again.

Set-based and bounded: each call moves up to `limit` runs, oldest first, passing over rows that others hold. It is safe
to run any number of these at once: a run is moved by whoever locks it first, and no longer picked by the next.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings

from governance.actors import Actor
from workflows.lifecycle.ending import RELEASE_TO
from workflows.models.moves import MAX_ATTEMPTS, UNLEASED, move, statement
from workflows.models.rows import Row
from workflows.models.run import HOLDS_SLOT

_CLOCK = "COALESCE(%(now)s::timestamptz, clock_timestamp())"
_STALE_DISPATCH = "%(stale_dispatch_ms)s * interval '1 millisecond'"
# Patience doubles with each hand-out, up to an hour; the bare limit stands beside it for the index.
UNCLAIMED = f"""r.dispatched_at < {_CLOCK} - {_STALE_DISPATCH}
    AND r.dispatched_at < {_CLOCK}
        - LEAST({_STALE_DISPATCH} * power(2, LEAST(r.dispatch_attempts - 1, 20)),
                GREATEST(interval '1 hour', {_STALE_DISPATCH}))"""
SILENT = f"""COALESCE(r.last_heartbeat_at, r.claimed_at) < {_CLOCK} - %(stale_claim_ms)s * interval '1 millisecond'"""
_USED_UP = f"r.dispatch_attempts >= {MAX_ATTEMPTS}"
_LIMIT_UNCLAIMED = "ORDER BY r.dispatched_at LIMIT %(limit)s"
_LIMIT_LEASED = "ORDER BY r.deadline_at LIMIT %(limit)s"

_EXHAUSTED = {
    "finished_at": "p.at",
    "last_error": "'Dispatch retries exhausted after ' || r.dispatch_attempts || ' attempts'",
    "last_error_at": "p.at",
    "gateway_session_active": "false",
}

RECALL_UNCLAIMED = statement(
    "recall",
    pick=f"{UNCLAIMED} AND NOT {_USED_UP} {_LIMIT_UNCLAIMED}",
    sets=UNLEASED,
    skip_locked=True,
    answers_payloads=False,
)
# The agent was switched off after the hand-out: no fault of the run's, so the attempt is returned.
RECALL_INACTIVE = statement(
    "recall",
    pick=f"""EXISTS (SELECT FROM agent_profiles agent WHERE agent.agent_id = r.target_agent_id AND NOT agent.active)
        {_LIMIT_UNCLAIMED}""",
    sets={**UNLEASED, "dispatch_attempts": "GREATEST(r.dispatch_attempts - 1, 0)"},
    skip_locked=True,
    answers_payloads=False,
)
EXHAUST_UNCLAIMED = statement(
    "exhaust",
    pick=f"{UNCLAIMED} AND {_USED_UP} {_LIMIT_UNCLAIMED}",
    sources=("dispatched",),
    sets=_EXHAUSTED,
    skip_locked=True,
    answers_payloads=False,
)
# A paused run waits for an operator, not for its attempts: it only loses its lease.
RELEASE_SILENT = statement(
    "release",
    pick=f"""{HOLDS_SLOT} AND r.claim_session_id IS NOT NULL
        AND {SILENT} AND (r.status = 'paused' OR NOT {_USED_UP}) {_LIMIT_LEASED}""",
    sets=UNLEASED,
    to=RELEASE_TO,
    ends_lease=True,
    skip_locked=True,
    answers_payloads=False,
)
EXHAUST_SILENT = statement(
    "exhaust",
    pick=f"{SILENT} AND {_USED_UP} {_LIMIT_LEASED}",
    sources=("claimed", "running"),
    sets=_EXHAUSTED,
    ends_lease=True,
    skip_locked=True,
    answers_payloads=False,
)
_MINUTES = """(SELECT lease.timeout_minutes FROM run_leases lease
    WHERE lease.run_id = r.id AND lease.lease_no = r.lease_no)"""
TIME_OUT = statement(
    "time_out",
    pick=f"r.deadline_at < {_CLOCK} {_LIMIT_LEASED}",
    picked={"minutes": _MINUTES},
    sets={
        "finished_at": "p.at",
        "last_error": "'Timed out after ' || p.minutes || ' minutes'",
        "last_error_at": "p.at",
        "gateway_session_active": "false",
    },
    ends_lease=True,
    skip_locked=True,
    answers_payloads=False,
    reason="last_error",
)


def recall_unclaimed(*, actor: Actor, limit: int, now: datetime | None = None) -> list[Row]:
    """Handed out, unclaimed for stale-dispatch × 2^(attempts − 1), attempts left: dispatched -> queued."""
    return _recover(RECALL_UNCLAIMED, actor, limit, now, "not claimed in time")


def recall_inactive(*, actor: Actor, limit: int, now: datetime | None = None) -> list[Row]:
    """Handed out to an agent that was switched off since: dispatched -> queued, the attempt returned."""
    return _recover(RECALL_INACTIVE, actor, limit, now, "agent inactive")


def exhaust_unclaimed(*, actor: Actor, limit: int, now: datetime | None = None) -> list[Row]:
    """As recall_unclaimed, but the hand-out was the last one: dispatched -> failed."""
    return _recover(EXHAUST_UNCLAIMED, actor, limit, now, "not claimed in time, no attempts left")


def release_silent(*, actor: Actor, limit: int, now: datetime | None = None) -> list[Row]:
    """No heartbeat for stale-claim, attempts left: the lease ends, -> queued at its old place (paused stays paused)."""
    return _recover(RELEASE_SILENT, actor, limit, now, "no heartbeat")


def exhaust_silent(*, actor: Actor, limit: int, now: datetime | None = None) -> list[Row]:
    """As release_silent, but the hand-out was the last one: -> failed."""
    return _recover(EXHAUST_SILENT, actor, limit, now, "no heartbeat, no attempts left")


def time_out(*, actor: Actor, limit: int, now: datetime | None = None) -> list[Row]:
    """Past `deadline_at`: claimed, running -> timed_out, naming the minutes. Frees slots: the caller rings."""
    return _recover(TIME_OUT, actor, limit, now, None)


def _recover(sql: str, actor: Actor, limit: int, now: datetime | None, reason: str | None) -> list[Row]:
    parameters: dict[str, Any] = {
        "actor": str(actor),
        "limit": limit,
        "now": now,
        "reason": reason,
        "max_attempts": settings.DISPATCHER_MAX_DISPATCH_RETRIES,
        "stale_dispatch_ms": settings.DISPATCHER_STALE_DISPATCH_MS,
        "stale_claim_ms": settings.DISPATCHER_STALE_CLAIM_MS,
    }
    return move(sql, parameters)
