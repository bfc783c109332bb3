"""Runs as the API sends them."""

from __future__ import annotations

from typing import Any

ID = "019aafe1-7c00-7000-8000-000000000001"


def run(status: str = "dispatched", **columns: Any) -> dict[str, Any]:
    held = {"claimed_by": "coder", "claim_session_id": "s1", "lease_no": 3, "deadline_at": "2026-03-01T10:30:00Z"}
    return {
        "id": ID,
        "workflow_type": "code-change",
        "status": status,
        "target_agent_id": "coder",
        "priority": 10,
        "dispatch_attempts": 1,
        "max_attempts": None,
        "max_retries": 2,
        "dispatched_at": "2026-03-01T09:28:00Z",
        "hold_reason": None,
        "last_error": None,
        **(held if status in ("claimed", "running", "paused") else {}),
        **columns,
    }


STATS = {
    "queued_count": 12,
    "pending_count": 3,
    "claimed_count": 1,
    "running_count": 2,
    "paused_count": 0,
    "completed_count": 1041,
    "failed_count": 17,
    "timed_out_count": 2,
    "cancelled_count": 5,
    "stale_unclaimed_count": 0,
    "stale_claimed_count": 1,
    "dispatch_count": 1100,
    "average_claim_latency_seconds": 1.234,
    "failure_rate": 0.0172727,
    "route_count": 8,
    "unroutable_count": 2,
    "recovery_suspended": False,
    "poll_interval_ms": 30000,
    "stale_dispatch_ms": 300000,
    "stale_claim_ms": 600000,
    "max_dispatch_retries": 3,
    "last_tick_at": "2026-03-01T09:29:48Z",
    "last_tick_error": None,
    "last_tick_summary": {"dispatched_count": 2, "retried_count": 0, "released_count": 1, "timed_out_count": 0},
    "dispatchers": [{"pid": 1}],
}
