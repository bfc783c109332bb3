"""promote: parked runs whose time has come are made ready; and when the next one's comes."""

from __future__ import annotations

from collections import Counter

from django.db import connection

from workflows import lifecycle
from workflows.ticking import STATEMENT_LIMIT, STATEMENTS_A_TICK, Outcome, Pass

SECONDS_TO_NEXT = """
SELECT EXTRACT(epoch FROM not_before - clock_timestamp())::float8 FROM workflow_runs
WHERE status = 'queued' AND not_before IS NOT NULL ORDER BY not_before LIMIT 1
"""


def promote(this: Pass) -> Outcome:
    """Null `not_before` where it has passed."""
    total = 0
    for _ in range(STATEMENTS_A_TICK):
        if this.stopping():
            return Outcome(Counter(promoted=total))
        count = lifecycle.promote(limit=STATEMENT_LIMIT, now=this.now)
        total += count
        if count < STATEMENT_LIMIT:
            return Outcome(Counter(promoted=total))
    return Outcome(Counter(promoted=total), cut=True)


def seconds_to_next() -> float | None:
    """Until the next parked run is due (not above 0: it is, and somebody holds it); None: nothing is parked."""
    with connection.cursor() as cursor:
        cursor.execute(SECONDS_TO_NEXT)
        row = cursor.fetchone()
        return row[0] if row else None
