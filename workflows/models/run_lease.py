"""The leases of a run: who held it, from when to when, and what the call that ended it answered."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from workflows.models.run import WorkflowRun


class RunLease(models.Model):
    pk = models.CompositePrimaryKey("run_id", "lease_no")
    run = models.ForeignKey(WorkflowRun, on_delete=models.CASCADE, related_name="leases", db_index=False)
    lease_no = models.IntegerField()
    agent_id = models.CharField(max_length=100)
    session_id = models.CharField(max_length=200)
    timeout_minutes = models.IntegerField()
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    end_verb = models.CharField(max_length=24, null=True)
    end_reason = models.TextField(null=True)
    # Of the holder's own ending call: a repeat is known by its digest and answered by the outcome.
    end_digest = models.CharField(max_length=64, null=True)
    end_outcome = models.JSONField(null=True)

    class Meta:
        db_table = "run_leases"
        verbose_name = "lease"
        constraints = [
            models.UniqueConstraint(fields=["run"], condition=Q(ended_at__isnull=True), name="lease_one_alive"),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True, end_verb__isnull=True)
                | Q(ended_at__isnull=False, end_verb__isnull=False),
                name="lease_end_whole",
            ),
        ]
        indexes = [
            models.Index(
                fields=["session_id", "agent_id"], condition=Q(ended_at__isnull=True), name="lease_alive_by_session"
            )
        ]

    def __str__(self) -> str:
        return f"{self.run_id} lease {self.lease_no}"
