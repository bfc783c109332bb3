"""The sums of ended runs, so that the figures of a long history cost four rows.

A run's end is counted once, some time after it: `fold` marks runs `counted` and adds them in one transaction, so that
rollup + ended runs that aren't counted + open runs is exact in every snapshot. A run whose end is undone must leave the
sums again first: `uncount`. Sums stay when counted runs are pruned.

Latencies are of each run's last claimed hand-out: the run keeps no other.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import connection, models
from django.db.models import Q

from workflows import states

# What one run adds. A claim that is older than its hand-out was made by hand, and is no latency.
SUMS = """count(*) AS runs, count(dispatched_at) AS dispatched,
    count(*) FILTER (WHERE claimed_at >= dispatched_at) AS claims,
    COALESCE(extract(epoch FROM sum(claimed_at - dispatched_at) FILTER (WHERE claimed_at >= dispatched_at)), 0)
        AS claim_seconds"""
# In the order of the key, so that two that count at once never wait for each other in a ring.
FOLD = f"""
WITH folded AS (
    UPDATE workflow_runs SET counted = true
    WHERE id = ANY(ARRAY(
        SELECT id FROM workflow_runs WHERE finished_at IS NOT NULL AND NOT counted
        ORDER BY finished_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING status, dispatched_at, claimed_at
), sums AS (
    INSERT INTO run_rollups AS rollup (status, runs, dispatched, claims, claim_seconds)
    SELECT status, {SUMS} FROM folded GROUP BY status ORDER BY status
    ON CONFLICT (status) DO UPDATE SET runs = rollup.runs + excluded.runs,
        dispatched = rollup.dispatched + excluded.dispatched, claims = rollup.claims + excluded.claims,
        claim_seconds = rollup.claim_seconds + excluded.claim_seconds
)
SELECT count(*) FROM folded"""  # noqa: S608  (constants only)
LOCK = "SELECT status FROM run_rollups ORDER BY status FOR NO KEY UPDATE"
UNCOUNT = f"""
WITH unfolded AS (
    UPDATE workflow_runs SET counted = false WHERE id = ANY(%(ids)s) AND counted
    RETURNING status, dispatched_at, claimed_at
), sums AS (
    UPDATE run_rollups rollup SET runs = rollup.runs - gone.runs, dispatched = rollup.dispatched - gone.dispatched,
        claims = rollup.claims - gone.claims, claim_seconds = rollup.claim_seconds - gone.claim_seconds
    FROM (SELECT status, {SUMS} FROM unfolded GROUP BY status) gone WHERE rollup.status = gone.status
)
SELECT count(*) FROM unfolded"""  # noqa: S608


class RunRollup(models.Model):
    status = models.CharField(primary_key=True, max_length=24)
    runs = models.BigIntegerField()
    dispatched = models.BigIntegerField()
    claims = models.BigIntegerField()
    claim_seconds = models.DecimalField(max_digits=24, decimal_places=6)

    class Meta:
        db_table = "run_rollups"
        verbose_name = "rollup"
        constraints = [
            models.CheckConstraint(condition=Q(status__in=states.FINAL), name="rollup_status_final"),
            models.CheckConstraint(
                condition=Q(runs__gte=0, dispatched__gte=0, claims__gte=0), name="rollup_counts_range"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.status}: {self.runs}"

    @classmethod
    def fold(cls, *, limit: int) -> int:
        """Count up to `limit` ended runs, the oldest end first, passing over what others hold: how many."""
        with connection.cursor() as cursor:
            cursor.execute(FOLD, {"limit": limit})
            return int(cursor.fetchone()[0])

    @classmethod
    def uncount(cls, ids: Sequence[uuid.UUID]) -> int:
        """Take these ended runs out of the sums: how many were in. For a transaction that holds their locks, before it
        changes their state."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT EXISTS (SELECT FROM workflow_runs WHERE id = ANY(%s) AND counted)", [list(ids)])
            if not cursor.fetchone()[0]:
                return 0
            cursor.execute(LOCK)
            cursor.execute(UNCOUNT, {"ids": list(ids)})
            return int(cursor.fetchone()[0])
