"""Which agent takes which type of work, how many at once, and for how long."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q

from dispatcher_project.versioned import Versioned

MAX_TIMEOUT_MINUTES = 525_600
MAX_CONCURRENT = 1_000_000
MAX_ATTEMPTS = 1_000
NAME = RegexValidator(r"\A[^\s\x00-\x1f/?#][^\x00-\x1f/?#]*\Z", "No control characters, no / ? #, no leading blank.")


class RoutingRule(Versioned):
    workflow_type = models.CharField(
        primary_key=True, max_length=100, validators=[NAME], help_text="The type of run that this rule is for."
    )
    agent_id = models.CharField(
        "agent", max_length=100, validators=[NAME], help_text="Who gets these runs, unless a run names its own agent."
    )
    priority = models.IntegerField(default=0, help_text="Higher goes first, over all types.")
    max_concurrent = models.IntegerField(
        default=1,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_CONCURRENT)],
        help_text="How many runs of this type may be out at once. 0: none is dispatched.",
    )
    timeout_minutes = models.IntegerField(
        default=60,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_TIMEOUT_MINUTES)],
        help_text="Minutes from the claim until a run is timed out (1 to 525600).",
    )
    max_attempts = models.IntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_ATTEMPTS)],
        help_text="Hand-outs in all before a run fails. Empty: the server's setting.",
    )
    active = models.BooleanField(default=True, help_text="Off: runs of this type wait.")
    inactive_reason = models.CharField(
        "reason", max_length=500, blank=True, help_text="Why it is off. Shown wherever a run waits for it."
    )

    class Meta:
        db_table = "workflow_agent_routing"
        ordering = ["-priority", "workflow_type"]
        constraints = [
            models.CheckConstraint(condition=~Q(workflow_type="") & ~Q(agent_id=""), name="routing_names_not_empty"),
            models.CheckConstraint(
                condition=Q(max_concurrent__gte=0, max_concurrent__lte=MAX_CONCURRENT),
                name="routing_max_concurrent_range",
            ),
            models.CheckConstraint(
                condition=Q(timeout_minutes__gte=1, timeout_minutes__lte=MAX_TIMEOUT_MINUTES),
                name="routing_timeout_minutes_range",
            ),
            models.CheckConstraint(
                condition=Q(max_attempts__isnull=True) | Q(max_attempts__gte=1, max_attempts__lte=MAX_ATTEMPTS),
                name="routing_max_attempts_range",
            ),
        ]

    def __str__(self) -> str:
        return self.workflow_type

    def clean(self) -> None:
        if self.active and self.inactive_reason:
            raise ValidationError({"inactive_reason": "Only an inactive rule has a reason."})
