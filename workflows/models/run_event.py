"""The timeline: what happened to a run, numbered without gaps under the run's row lock."""

from __future__ import annotations

from django.db import models

from workflows.models.run import WorkflowRun


class RunEvent(models.Model):
    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(WorkflowRun, on_delete=models.CASCADE, related_name="events", db_index=False)
    seq = models.IntegerField()
    verb = models.CharField(max_length=24)
    from_status = models.CharField(max_length=24, null=True)
    to_status = models.CharField(max_length=24)
    actor = models.CharField(max_length=200)
    reason = models.TextField(null=True)
    detail = models.JSONField(null=True)
    at = models.DateTimeField()

    class Meta:
        db_table = "workflow_run_events"
        verbose_name = "event"

    def __str__(self) -> str:
        return f"{self.run_id} #{self.seq} {self.verb}"
