"""System checks: settings and database that would break the queue's guarantees stop the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections

MINIMUM_SERVER = 140000
OWN_TABLES = {
    "workflow_runs": {"workflow_type", "claim_session_id", "key_space", "last_seq"},
    "workflow_agent_routing": {"workflow_type", "agent_id", "version"},
    "agent_profiles": {"agent_id", "role", "version"},
    "departments": {"department_id"},
    "agent_tokens": {"key", "agent_id", "digest"},
    "agent_activity": {"agent_id", "last_seen_at"},
    "run_leases": {"run_id", "lease_no"},
    "workflow_run_events": {"run_id", "seq"},
    "dispatch_slots": {"key"},
    "process_instances": {"kind", "last_seen_at"},
    "workflow_run_steps": {"run_id", "step_name"},
    "workflow_artifacts": {"run_id", "uri"},
    "run_rollups": {"status"},
}


@register()
def transactions_are_ours(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """READ COMMITTED and no ATOMIC_REQUESTS: locks are taken and counted in later statements of one transaction."""
    found: list[CheckMessage] = []
    for alias, config in settings.DATABASES.items():
        if config.get("ATOMIC_REQUESTS"):
            found.append(Error(f"ATOMIC_REQUESTS of {alias} must be off.", id="workflows.E001"))
        level = config.get("OPTIONS", {}).get("isolation_level")
        if level not in (None, 2, "READ COMMITTED") and getattr(level, "value", level) != 2:
            found.append(Error(f"isolation_level of {alias} must be READ COMMITTED.", id="workflows.E002"))
    return found


@register(Tags.database)
def database_is_ours(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """PostgreSQL 14 or newer, READ COMMITTED by default, and no foreign tables under our names."""
    if not databases or "default" not in databases:
        return []
    connection = connections["default"]
    with connection.cursor() as cursor:
        version = connection.connection.info.server_version
        if version < MINIMUM_SERVER:
            return [Error(f"PostgreSQL 14 or newer is needed; this is {version // 10000}.", id="workflows.E003")]
        cursor.execute("SHOW default_transaction_isolation")
        level = cursor.fetchone()[0]
        if level != "read committed" and not connection.settings_dict["OPTIONS"].get("isolation_level"):
            return [Error(f"Transactions of this database must be read committed, not {level}.", id="workflows.E002")]
        cursor.execute(
            """SELECT table_name, array_agg(column_name::text) FROM information_schema.columns
            WHERE table_schema = ANY(current_schemas(false)) AND table_name = ANY(%s) GROUP BY table_name""",
            [list(OWN_TABLES)],
        )
        return [
            Error(
                f"The database has a table {table!r} that is not ours (no {', '.join(sorted(missing))}).",
                hint="Point DATABASE_URL at a database of Workflow Dispatcher's own.",
                id="workflows.E004",
            )
            for table, columns in cursor.fetchall()
            if (missing := OWN_TABLES[table] - set(columns))
        ]
