"""A run as a plain row: what the hot calls return and the API renders, without a model instance in between.

Payload columns stay the text that PostgreSQL holds, so that no number in them is rounded on its way out.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db import connection
from django.db.backends.utils import CursorWrapper

Row = dict[str, Any]

COLUMNS: tuple[str, ...] = (
    "id", "workflow_type", "owner_agent_id", "target_agent_id", "initiator", "status", "current_step",
    "input_payload", "output_summary", "last_error", "last_error_at", "priority", "not_before", "max_attempts",
    "dispatch_attempts", "queued_at", "dispatched_at", "claimed_at", "claimed_by", "claim_session_id", "lease_no",
    "started_at", "last_heartbeat_at", "deadline_at", "finished_at", "progress_percent", "progress_message",
    "operator_notes", "gateway_session_id", "gateway_session_active", "input_tokens", "output_tokens",
    "cached_tokens", "model_id", "cost_estimate", "currency", "reported_at", "charge_agent_id",
    "charge_department_id", "charge_project",
    "key_space", "last_seq", "created_at", "updated_at",
)  # fmt: skip
PAYLOADS = ("input_payload", "output_summary")
# Of the type's rule as it is now; null without one.
RULE_COLUMNS: dict[str, str] = {
    "rule_agent_id": "rule.agent_id",
    "routing_priority": "rule.priority",
    "max_concurrent": "rule.max_concurrent",
    "timeout_minutes": "rule.timeout_minutes",
    "rule_max_attempts": "rule.max_attempts",
}

_SELECTED = ", ".join([f"run.{name}" for name in COLUMNS] + [f"{sql} AS {name}" for name, sql in RULE_COLUMNS.items()])
# In lists a payload larger than this many bytes stays in the database.
TRIM_BYTES = 4096
_RULE = "LEFT JOIN workflow_agent_routing rule ON rule.workflow_type = run.workflow_type"
SELECT_FROM_MOVED = f"SELECT {_SELECTED} FROM moved run {_RULE}"  # noqa: S608  (constants only)
_BARE = ", ".join(f"NULL AS {part[4:]}" if part[4:] in PAYLOADS else part for part in _SELECTED.split(", "))
SELECT_FROM_MOVED_BARE = f"SELECT {_BARE} FROM moved run {_RULE}"  # noqa: S608
SELECT = f"SELECT {_SELECTED} FROM workflow_runs run {_RULE}"  # noqa: S608


def _large(name: str) -> str:
    return f"octet_length(run.{name}::text) > {TRIM_BYTES}"


_TRIMMED = ", ".join(
    [
        f"CASE WHEN {_large(name)} THEN NULL ELSE run.{name} END AS {name}" if name in PAYLOADS else f"run.{name}"
        for name in COLUMNS
    ]
    + [f"{sql} AS {name}" for name, sql in RULE_COLUMNS.items()]
)
SELECT_TRIMMED = f"SELECT {_TRIMMED} FROM workflow_runs run {_RULE}"  # noqa: S608


def read(cursor: CursorWrapper) -> list[Row]:
    names = [column.name for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


def select(condition: str, parameters: dict[str, Any], *, trimmed: bool = False) -> list[Row]:
    """Rows by an SQL condition (with its ORDER BY and LIMIT) on run and rule. `condition` is never input.

    `trimmed`: None in place of a payload larger than TRIM_BYTES.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"{SELECT_TRIMMED if trimmed else SELECT} WHERE {condition}", parameters)
        return read(cursor)


def get(run_id: uuid.UUID) -> Row | None:
    rows = select("run.id = %(id)s", {"id": run_id})
    return rows[0] if rows else None


def by_ids(ids: list[uuid.UUID], *, trimmed: bool = False) -> list[Row]:
    """The rows of these runs, in this order."""
    found = {row["id"]: row for row in select("run.id = ANY(%(ids)s)", {"ids": ids}, trimmed=trimmed)}
    return [found[pk] for pk in ids if pk in found]
