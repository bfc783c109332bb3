"""The steps that an agent says it took: one row per run and name, as last reported."""

from __future__ import annotations

from django.db import models

from workflows.models.run import WorkflowRun


class RunStep(models.Model):
    run = models.ForeignKey(WorkflowRun, on_delete=models.CASCADE, related_name="steps", db_index=False)
    step_name = models.CharField(max_length=200)
    status = models.CharField(max_length=50, null=True)
    output = models.JSONField(null=True)
    lease_no = models.IntegerField()
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        db_table = "workflow_run_steps"
        verbose_name = "step"
        constraints = [
            models.UniqueConstraint(fields=["run", "step_name"], name="step_once_a_run"),
            models.CheckConstraint(condition=~models.Q(step_name=""), name="step_name_not_empty"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.step_name}"
