"""The queue's tables as they stand, to prove that something changed nothing, or only what it should."""

from __future__ import annotations

import json
from typing import Any

from django.db import connection

TABLES = {"workflow_runs": "id", "run_leases": "run_id, lease_no", "workflow_run_events": "run_id, seq"}


def everything() -> dict[str, list[dict[str, Any]]]:
    """Every row of runs, leases and timelines, whole."""
    found = {}
    with connection.cursor() as cursor:
        for table, order in TABLES.items():
            cursor.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY {order}")
            found[table] = [json.loads(row[0]) for row in cursor.fetchall()]
    return found


def run(pk: Any) -> dict[str, Any]:
    return next(row for row in everything()["workflow_runs"] if row["id"] == str(pk))


def leases(pk: Any) -> list[dict[str, Any]]:
    return [row for row in everything()["run_leases"] if row["run_id"] == str(pk)]


def timeline(pk: Any) -> list[dict[str, Any]]:
    return [row for row in everything()["workflow_run_events"] if row["run_id"] == str(pk)]


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Names of the columns that differ."""
    return {name for name in after if before[name] != after[name]}
