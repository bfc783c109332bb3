"""The figures of `GET /workflow-runs/dispatcher/stats`, in three statements."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

from dispatcher_project import clock
from workflows import states
from workflows.api.twins import Twins
from workflows.lifecycle.recovering import SILENT, UNCLAIMED
from workflows.models import ProcessInstance
from workflows.models.process import ProcessKind

COUNTED_AS = {states.DISPATCHED: "pending"}  # what the dashboard calls a run that waits to be claimed
COUNTS = """
SELECT status, count(*), count(dispatched_at),
    extract(epoch FROM sum(claimed_at - dispatched_at) FILTER (WHERE claimed_at >= dispatched_at)),
    count(*) FILTER (WHERE claimed_at >= dispatched_at)
FROM workflow_runs GROUP BY status
"""
TROUBLE = f"""
SELECT
    (SELECT count(*) FROM workflow_runs r WHERE r.status = 'dispatched' AND {UNCLAIMED}) AS stale_unclaimed_count,
    (SELECT count(*) FROM workflow_runs r WHERE r.status IN ('claimed', 'running') AND {SILENT}) AS stale_claimed_count,
    (SELECT count(*) FROM workflow_agent_routing) AS route_count,
    (SELECT count(*) FROM workflow_runs r WHERE r.status = 'queued' AND r.owner_agent_id IS NULL AND NOT EXISTS
        (SELECT FROM workflow_agent_routing rule WHERE rule.workflow_type = r.workflow_type)) AS unroutable_count
"""  # noqa: S608
TICK = ("dispatched_count", "retried_count", "released_count", "timed_out_count")
ENFORCEMENT = ("held", "stopped", "warned")


def read() -> Twins:
    return Twins(**_counts(), **_trouble(), **_settings(), **_dispatchers(clock.now()))


def _counts() -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(COUNTS)
        found = {status: figures for status, *figures in cursor.fetchall()}
    none = (0, 0, None, 0)
    figures = {f"{COUNTED_AS.get(state, state)}_count": found.get(state, none)[0] for state in states.STATES}
    dispatched = sum(row[1] for row in found.values())
    seconds, claims = sum(row[2] or 0 for row in found.values()), sum(row[3] for row in found.values())
    bad = figures["failed_count"] + figures["timed_out_count"]
    return {
        **figures,
        "dispatch_count": dispatched,
        "average_claim_latency_seconds": round(float(seconds) / claims, 6) if claims else None,
        "failure_rate": round(bad / dispatched, 6) if dispatched else 0,
    }


def _trouble() -> dict[str, Any]:
    limits = {
        "now": None,
        "stale_dispatch_ms": settings.DISPATCHER_STALE_DISPATCH_MS,
        "stale_claim_ms": settings.DISPATCHER_STALE_CLAIM_MS,
    }
    with connection.cursor() as cursor:
        cursor.execute(TROUBLE, limits)
        names = [column.name for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))


def _settings() -> dict[str, Any]:
    return {
        "poll_interval_ms": settings.DISPATCHER_POLL_INTERVAL_MS,
        "stale_dispatch_ms": settings.DISPATCHER_STALE_DISPATCH_MS,
        "stale_claim_ms": settings.DISPATCHER_STALE_CLAIM_MS,
        "max_dispatch_retries": settings.DISPATCHER_MAX_DISPATCH_RETRIES,
    }


def _dispatchers(now: datetime) -> dict[str, Any]:
    """The last tick of any dispatcher, and the dispatchers that are alive."""
    kept = list(ProcessInstance.objects.filter(kind=ProcessKind.DISPATCHER).order_by("-last_seen_at")[:100])
    alive = [process for process in kept if process.stopped_at is None and heard_from(process, now)]
    ticked = [(process.last_tick_at, process) for process in kept if process.last_tick_at is not None]
    last = max(ticked, key=lambda pair: pair[0])[1] if ticked else None
    return {
        "recovery_suspended": any((process.recovery_suspended_until or now) > now for process in alive),
        "last_tick_at": last.last_tick_at if last else None,
        "last_tick_error": last.last_tick_error if last else None,
        "last_tick_summary": _summary(last.last_tick_summary or {}) if last else None,
        "dispatchers": [_process(process) for process in alive],
    }


def heard_from(process: ProcessInstance, now: datetime) -> bool:
    """Within two of its poll intervals, and ten seconds at least."""
    interval = process.poll_interval_ms or settings.DISPATCHER_POLL_INTERVAL_MS
    return process.last_seen_at > now - max(2 * timedelta(milliseconds=interval), timedelta(seconds=10))


def _summary(said: dict[str, Any]) -> Twins:
    enforced = said.get("budget_enforcement") or {}
    return Twins(
        **{name: said.get(name, 0) for name in TICK},
        budget_enforcement=Twins({name: enforced.get(name, 0) for name in ENFORCEMENT}),
    )


def _process(process: ProcessInstance) -> Twins:
    return Twins(
        id=process.pk,
        host=process.host,
        pid=process.pid,
        started_at=process.started_at,
        last_seen_at=process.last_seen_at,
        last_tick_at=process.last_tick_at,
        last_tick_error=process.last_tick_error,
        poll_interval_ms=process.poll_interval_ms,
        recovery_suspended_until=process.recovery_suspended_until,
    )
