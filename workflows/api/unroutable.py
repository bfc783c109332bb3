"""Types whose due runs nobody can take, found by one step per type in the index of ready runs, whatever the backlog."""

from __future__ import annotations

from django.db import connection

from workflows.dispatcher.dispatch import by_index
from workflows.models.run import IS_READY

_NEXT = f"""
SELECT workflow_type FROM workflow_runs WHERE {IS_READY} {{beyond}}
ORDER BY workflow_type, COALESCE(owner_agent_id, ''), priority DESC, queued_at, id LIMIT 1
"""  # noqa: S608
TYPES = f"""
WITH RECURSIVE kinds AS (
    ({_NEXT.format(beyond="")})
    UNION ALL
    SELECT next.* FROM kinds, LATERAL ({_NEXT.format(beyond="AND workflow_type > kinds.workflow_type")}) next
)
SELECT workflow_type FROM kinds
WHERE NOT EXISTS (SELECT FROM workflow_agent_routing rule WHERE rule.workflow_type = kinds.workflow_type)
"""  # noqa: S608
COUNT = f"""
SELECT count(*) FROM workflow_runs
WHERE {IS_READY} AND workflow_type = ANY(%s) AND COALESCE(owner_agent_id, '') = ''
"""  # noqa: S608


def types() -> list[str]:
    """Types without a rule that have due runs; these may still name an owner."""
    with by_index(), connection.cursor() as cursor:
        cursor.execute(TYPES)
        return [row[0] for row in cursor.fetchall()]


def count() -> int:
    """Due runs without a rule and without an owner."""
    found = types()
    if not found:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(COUNT, [found])
        return int(cursor.fetchone()[0])
