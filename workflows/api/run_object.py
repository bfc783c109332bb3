"""A run as the API shows it: made from a row (`models/rows.py`) in one place."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import orjson
from django.conf import settings
from django.db import connection

from workflows import admission
from workflows.api.twins import Twins
from workflows.lifecycle import fence
from workflows.models.rows import COLUMNS, PAYLOADS, Row

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


def show(row: Row, *, hold_reason: str | None = None) -> Twins:
    """The run object without asking what holds it."""
    shown = Twins({name: row[name] for name in _AS_THEY_ARE})
    for name in PAYLOADS:
        shown[name] = {} if row[name] is None else orjson.Fragment(row[name])
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
    """For lists: payloads that were left out are marked, `input_payload_truncated` or `output_summary_truncated`."""
    reasons = admission.hold_reasons(runs)
    return [_listed(row, reasons[row["id"]]) for row in runs]


def _listed(row: Row, hold_reason: str | None) -> Twins:
    shown = show(row, hold_reason=hold_reason)
    for name in PAYLOADS:
        if row[name] is None:
            shown[f"{name}_truncated"] = True
    return shown


def show_whole(row: Row) -> Twins:
    """The run's detail: the object with its timeline and leases, oldest first."""
    shown = show_held(row)
    shown["events"] = [_event(found) for found in _select(EVENTS, row["id"])]
    shown["leases"] = _select(LEASES, row["id"])
    return shown


def _event(found: Twins) -> Twins:
    if found["detail"] is not None:
        found["detail"] = orjson.Fragment(found["detail"])
    return found


def _select(sql: str, run_id: uuid.UUID) -> list[Twins]:
    with connection.cursor() as cursor:
        cursor.execute(sql, [run_id])
        names = [column.name for column in cursor.description]
        return [Twins(zip(names, values, strict=True)) for values in cursor.fetchall()]
