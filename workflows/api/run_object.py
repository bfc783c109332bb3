"""A run as the API shows it: made from a row (`models/rows.py`) in one place."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson
from django.conf import settings
from django.db import connection

from dispatcher_project import conf
from workflows import admission, states
from workflows.api.twins import Twins
from workflows.lifecycle import fence
from workflows.models.rows import COLUMNS, PAYLOADS, TRIM_BYTES, Row

_HIDDEN = {"key_space", "last_seq", "progress_percent", "progress_message", "target_agent_id", *PAYLOADS}
_AS_THEY_ARE = tuple(name for name in COLUMNS if name not in _HIDDEN)

EVENTS = """
SELECT seq, verb, from_status, to_status, actor, reason, detail, at
FROM workflow_run_events WHERE run_id = %s ORDER BY seq
"""
LEASES = """
SELECT lease_no, agent_id, session_id, timeout_minutes, claimed_at, ended_at, end_verb, end_reason
FROM run_leases WHERE run_id = %s ORDER BY lease_no
"""
STEPS = """
SELECT step_name, status, output, lease_no, first_at, last_at FROM workflow_run_steps WHERE run_id = %s ORDER BY id
"""
ARTIFACT = ("id", "artifact_type", "label", "uri", "metadata", "created_by", "created_at")
ARTIFACTS = f"""
SELECT {", ".join(ARTIFACT)} FROM workflow_artifacts
WHERE run_id = %s AND (%s::bigint[] IS NULL OR id = ANY(%s)) ORDER BY id
"""  # noqa: S608


def show(row: Row, *, hold_reason: str | None = None) -> Twins:
    """The run object without asking what holds it. A payload that was left out is marked: `input_payload_truncated`
    or `output_summary_truncated`."""
    shown = Twins({name: row[name] for name in _AS_THEY_ARE})
    for name in PAYLOADS:
        shown[name] = {} if row[name] is None else orjson.Fragment(row[name])
        if row[name] is None:
            shown[f"{name}_truncated"] = True
    attempts = row["max_attempts"] or row["rule_max_attempts"] or settings.DISPATCHER_MAX_DISPATCH_RETRIES
    shown["target_agent_id"] = fence.target_of(row)
    shown["routing_priority"] = row["routing_priority"] or 0
    shown["max_concurrent"] = row["max_concurrent"]
    shown["timeout_minutes"] = row["timeout_minutes"] or settings.MONITOR_STALE_TIMEOUT_MINUTES
    shown["retry_count"] = max(row["dispatch_attempts"] - 1, 0)
    shown["max_retries"] = attempts - 1
    shown["hold_reason"] = hold_reason
    shown["progress"] = _progress(row)
    return shown


def _progress(row: Row) -> dict[str, Any] | None:
    percent, message = row["progress_percent"], row["progress_message"]
    return None if percent is None and message is None else {"percent": percent, "message": message}


def show_held(row: Row) -> Twins:
    """The run object with its hold reason. Costs statements only for a queued run: the hot calls have none."""
    return show(row, hold_reason=admission.hold_reasons([row])[row["id"]])


def show_listed(runs: Sequence[Row]) -> list[Twins]:
    """For lists: the hold reasons from one set-based look-up."""
    reasons = admission.hold_reasons(runs)
    return [show(row, hold_reason=reasons[row["id"]]) for row in runs]


def show_whole(row: Row) -> Twins:
    """The run's detail: the object with its timeline, leases, steps and artifacts, oldest first."""
    shown = show_held(row)
    shown["events"] = _select(EVENTS, row["id"], raw="detail")
    shown["leases"] = _select(LEASES, row["id"])
    shown["steps"] = _select(STEPS, row["id"], raw="output")
    shown["artifacts"] = artifacts(row["id"])
    return shown


def show_beaten(row: Row) -> Twins:
    """The answer to a heartbeat: what the holder does now, and until when it need not be heard from."""
    shown = show_held(row)
    shown["lease_expires_at"] = row["last_heartbeat_at"] + timedelta(milliseconds=settings.DISPATCHER_STALE_CLAIM_MS)
    shown["heartbeat_interval_seconds"] = conf.heartbeat_interval_seconds(settings.DISPATCHER_STALE_CLAIM_MS)
    shown["directive"] = "pause" if row["status"] == states.PAUSED else "continue"
    return shown


def trimmed(runs: Sequence[Row]) -> list[Row]:
    """Rows of a verb without their large payloads, as `rows.select(trimmed=True)` has them."""
    return [{**row, **{name: None for name in PAYLOADS if _is_large(row[name])}} for row in runs]


def _is_large(payload: str | None) -> bool:
    return payload is not None and len(payload.encode()) > TRIM_BYTES


def artifacts(run_id: uuid.UUID, *, ids: list[int] | None = None) -> list[Twins]:
    """Of a run, oldest first: all, or these."""
    return _select(ARTIFACTS, run_id, ids, ids, raw="metadata")


def _select(sql: str, *parameters: Any, raw: str = "") -> list[Twins]:
    """`raw`: the JSON column that goes out as it is stored."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        names = [column.name for column in cursor.description]
        found = [Twins(zip(names, values, strict=True)) for values in cursor.fetchall()]
    for row in found:
        if row.get(raw) is not None:
            row[raw] = orjson.Fragment(row[raw])
    return found
