"""What a run left somewhere: an address and what it is. The same address of one run is one artifact."""

from __future__ import annotations

from django.db import models

from workflows.models.run import WorkflowRun


class WorkflowArtifact(models.Model):
    run = models.ForeignKey(WorkflowRun, on_delete=models.CASCADE, related_name="artifacts", db_index=False)
    artifact_type = models.CharField(max_length=50)
    label = models.CharField(max_length=200, blank=True)
    uri = models.CharField(max_length=2000)
    metadata = models.JSONField(default=dict)
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "workflow_artifacts"
        verbose_name = "artifact"
        constraints = [
            models.UniqueConstraint(fields=["run", "uri"], name="artifact_once_a_run"),
            models.CheckConstraint(condition=~models.Q(uri=""), name="artifact_uri_not_empty"),
        ]

    def __str__(self) -> str:
        return self.uri
