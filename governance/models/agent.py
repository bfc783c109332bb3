"""Who works here: an agent's identity, and (apart, since it is written often) when it was last heard from."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from dispatcher_project.versioned import Versioned
from governance.models.department import IDENTIFIER, Department


class Role(models.TextChoices):
    ORCHESTRATOR = "orchestrator", "Orchestrator"
    PIPELINE = "pipeline", "Pipeline"
    SPECIALIST = "specialist", "Specialist"
    OPERATOR = "operator", "Operator"
    EXTERNAL = "external", "External"


class Agent(Versioned):
    agent_id = models.CharField("ID", primary_key=True, max_length=100, validators=[IDENTIFIER])
    display_name = models.CharField(max_length=200, blank=True)
    role = models.CharField(max_length=20, choices=Role.choices, default=Role.SPECIALIST)
    capabilities = ArrayField(
        models.CharField(max_length=100),
        default=list,
        blank=True,
        help_text="What it may be trusted with, separated by commas: orchestration, quality, repair, …",
    )
    department = models.ForeignKey(
        Department, on_delete=models.PROTECT, null=True, blank=True, related_name="agents", db_index=False
    )
    active = models.BooleanField(default=True, help_text="Off: nothing is handed to it; what it runs may finish.")
    inactive_reason = models.CharField(
        "reason", max_length=500, blank=True, help_text="Why it is off. Shown wherever a run waits for it."
    )
    max_concurrent = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many runs it may hold at once over all types. Empty: no limit of its own."
    )

    class Meta:
        db_table = "agent_profiles"
        ordering = ["agent_id"]
        permissions = [("operate", "May act as an operator: steer runs, edit routes, agents and tokens")]
        constraints = [
            models.CheckConstraint(condition=Q(role__in=Role.values), name="agent_role_known"),
            models.CheckConstraint(condition=~Q(agent_id=""), name="agent_id_not_empty"),
        ]

    def __str__(self) -> str:
        return self.agent_id

    def clean(self) -> None:
        if self.active and self.inactive_reason:
            raise ValidationError({"inactive_reason": "Only an inactive agent has a reason."})


class AgentActivity(models.Model):
    """When an agent was last heard from. Written at most once a minute, so that identity rows stay quiet."""

    agent = models.OneToOneField(Agent, on_delete=models.CASCADE, primary_key=True, related_name="activity")
    last_seen_at = models.DateTimeField()

    class Meta:
        db_table = "agent_activity"
        verbose_name_plural = "agent activity"

    def __str__(self) -> str:
        return f"{self.agent_id} at {self.last_seen_at}"
