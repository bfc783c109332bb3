"""The figures of `GET /workflow-runs/dispatcher/stats`, exact, at a cost that a long history doesn't raise.

What ended long ago is in `run_rollups`; what isn't there yet, and what is open, is counted by index. `/metrics` shows
the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection

from dispatcher_project import clock
from workflows import states
from workflows.api import unroutable
from workflows.api.twins import Twins
from workflows.lifecycle.recovering import SILENT, UNCLAIMED
from workflows.models import ProcessInstance
from workflows.models.process import ProcessKind
from workflows.models.rollup import SUMS

_NOT_QUEUED = ", ".join(f"'{state}'" for state in states.OPEN if state != states.QUEUED)
COUNTED_AS = {states.DISPATCHED: "pending"}  # what the dashboard calls a run that waits to be claimed
# One statement, so that a run which is being counted is seen on one side only. The queue, which may be long, is counted
# without its rows: those of it that were dispatched before stand in an index of their own, and none is claimed.
COUNTS = f"""
SELECT status, sum(runs)::bigint, sum(dispatched)::bigint, sum(claims)::bigint, sum(claim_seconds) FROM (
    SELECT status, runs, dispatched, claims, claim_seconds FROM run_rollups
    UNION ALL
    SELECT status, {SUMS} FROM workflow_runs WHERE finished_at IS NOT NULL AND NOT counted GROUP BY status
    UNION ALL
    SELECT status, {SUMS} FROM workflow_runs WHERE status IN ({_NOT_QUEUED}) GROUP BY status
    UNION ALL
    SELECT 'queued', count(*), 0, 0, 0 FROM workflow_runs WHERE status = 'queued'
    UNION ALL
    SELECT 'queued', 0, count(*), 0, 0 FROM workflow_runs WHERE status = 'queued' AND dispatched_at IS NOT NULL
) part GROUP BY status
"""  # noqa: S608  (constants only)
TROUBLE = f"""
SELECT
    (SELECT count(*) FROM workflow_runs r WHERE r.status = 'dispatched' AND {UNCLAIMED}) AS stale_unclaimed_count,
    (SELECT count(*) FROM workflow_runs r WHERE r.status IN ('claimed', 'running') AND {SILENT}) AS stale_claimed_count,
    (SELECT count(*) FROM workflow_agent_routing) AS route_count
"""  # noqa: S608
TICK = ("dispatched_count", "retried_count", "released_count", "timed_out_count")
ENFORCEMENT = ("held", "stopped", "warned")


@dataclass(frozen=True, slots=True)
class Counts:
    """`runs`: by status, each of them. `claims`: runs whose last hand-out was claimed, after `claim_seconds` in all."""

    runs: dict[str, int]
    dispatched: int
    claims: int
    claim_seconds: Decimal

    @property
    def failure_rate(self) -> float:
        bad = self.runs[states.FAILED] + self.runs[states.TIMED_OUT]
        return round(bad / self.dispatched, 6) if self.dispatched else 0

    @property
    def average_claim_latency_seconds(self) -> float | None:
        return round(float(self.claim_seconds) / self.claims, 6) if self.claims else None


def read() -> Twins:
    return Twins(**_shown(counts()), **trouble(), **_settings(), **_dispatchers(clock.now()))


def counts() -> Counts:
    with connection.cursor() as cursor:
        cursor.execute(COUNTS)
        found = {status: figures for status, *figures in cursor.fetchall()}
    return Counts(
        runs={state: found[state][0] if state in found else 0 for state in states.STATES},
        dispatched=sum(row[1] for row in found.values()),
        claims=sum(row[2] for row in found.values()),
        claim_seconds=sum((row[3] for row in found.values()), Decimal(0)),
    )


def _shown(found: Counts) -> dict[str, Any]:
    return {
        **{f"{COUNTED_AS.get(state, state)}_count": count for state, count in found.runs.items()},
        "dispatch_count": found.dispatched,
        "average_claim_latency_seconds": found.average_claim_latency_seconds,
        "failure_rate": found.failure_rate,
    }


def trouble() -> dict[str, int]:
    """stale_unclaimed_count, stale_claimed_count, route_count, unroutable_count."""
    limits = {
        "now": None,
        "stale_dispatch_ms": settings.DISPATCHER_STALE_DISPATCH_MS,
        "stale_claim_ms": settings.DISPATCHER_STALE_CLAIM_MS,
    }
    with connection.cursor() as cursor:
        cursor.execute(TROUBLE, limits)
        names = [column.name for column in cursor.description]
        found = dict(zip(names, cursor.fetchone(), strict=True))
    return {**found, "unroutable_count": unroutable.count()}


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
