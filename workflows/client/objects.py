"""The API's objects as Python reads them. Keys that an older server doesn't send are missing: none is required."""

from __future__ import annotations

from typing import Any, TypedDict


class Run(TypedDict, total=False):
    """A run. It has more keys than these; the API's reference lists them."""

    id: str
    workflow_type: str
    status: str
    target_agent_id: str | None
    owner_agent_id: str | None
    priority: int
    input_payload: dict[str, Any]
    input_payload_truncated: bool
    output_summary: dict[str, Any]
    claimed_by: str | None
    claim_session_id: str | None
    lease_no: int
    dispatch_attempts: int
    max_retries: int
    created_at: str
    dispatched_at: str | None
    claimed_at: str | None
    started_at: str | None
    finished_at: str | None
    last_heartbeat_at: str | None
    deadline_at: str | None
    not_before: str | None
    last_error: str | None
    hold_reason: str | None
    current_step: str | None
    events: list[dict[str, Any]]
    leases: list[dict[str, Any]]


class Heartbeat(Run, total=False):
    """A heartbeat's answer. `directive`: `continue`, or `pause` (do no work, but go on with heartbeats)."""

    directive: str
    lease_expires_at: str
    heartbeat_interval_seconds: float
    usage_recorded: bool


class Usage(TypedDict, total=False):
    """Running totals of one lease and model. Each is optional; without `model_id` they have a bucket of their own."""

    model_id: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    cost_estimate: float | str
    currency: str


class UsageAnswer(TypedDict, total=False):
    """`lease`: `held` or `lost`; booked in both cases."""

    lease: str


class Stats(TypedDict, total=False):
    """The dispatcher's figures, the most asked for ones."""

    queued_count: int
    pending_count: int
    claimed_count: int
    running_count: int
    paused_count: int
    completed_count: int
    failed_count: int
    timed_out_count: int
    cancelled_count: int
    dispatch_count: int
    failure_rate: float
    average_claim_latency_seconds: float
    last_tick_at: str | None
    dispatchers: list[dict[str, Any]]
