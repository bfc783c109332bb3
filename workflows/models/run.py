"""The run: one piece of work on its way to one agent. `moves.py` beside this file alone writes `status`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import uuid_utils.compat
from django.contrib.postgres.expressions import ArraySubquery
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Count, F, Func, OuterRef, Q, Subquery, Value
from django.db.models.functions import Coalesce
from django.db.models.functions import Now as TransactionTime  # noqa: TID251  (a column default: no caller has a clock)

from routing.models import RoutingRule
from workflows import states

# What the index, the counts and the slots mean by "held". One text, so that the partial index serves each query.
HOLDS_SLOT = "(status IN ('dispatched', 'claimed', 'running') OR (status = 'paused' AND claim_session_id IS NOT NULL))"
IS_READY = "status = 'queued' AND not_before IS NULL"

_READY = Q(status=states.QUEUED, not_before__isnull=True)
_PARKED = Q(status=states.QUEUED, not_before__isnull=False)
_HELD = Q(status__in=[states.DISPATCHED, states.CLAIMED, states.RUNNING]) | Q(
    status=states.PAUSED, claim_session_id__isnull=False
)
# Back in the queue after a hand-out: few, whatever the backlog.
_REQUEUED = Q(status=states.QUEUED, dispatched_at__isnull=False)
_UNCOUNTED = Q(finished_at__isnull=False, counted=False)
_NOT_QUEUED = Q(status__in=[state for state in states.OPEN if state != states.QUEUED])
_OWNER_KEY = Coalesce("owner_agent_id", Value(""))


def new_id() -> uuid.UUID:
    """A UUIDv7: ids of runs grow with time, so that their index stays compact."""
    return uuid_utils.compat.uuid7()


class RunQuerySet(models.QuerySet["WorkflowRun"]):
    def ready(self, workflow_type: str, owner: str) -> RunQuerySet:
        """Due runs of a type that name this owner ('' for none), in the order in which they go out."""
        return (
            self.alias(owner_key=_OWNER_KEY)
            .filter(_READY, workflow_type=workflow_type, owner_key=owner)
            .order_by("-priority", "queued_at", "id")
        )

    def with_attempts_left(self, limit: int) -> RunQuerySet:
        """Without those that had all their hand-outs. `limit`: of the rule or the setting; the run's own goes first."""
        return self.filter(dispatch_attempts__lt=Coalesce("max_attempts", Value(limit)))

    def grab(self, limit: int) -> list[tuple[int, Any, uuid.UUID]]:
        """Lock up to `limit` of these, passing over what others hold: (−priority, queued_at, id) each."""
        locked = self.select_for_update(skip_locked=True, no_key=True)
        rows = locked.values_list("priority", "queued_at", "id")[:limit]
        return [(-priority, queued_at, pk) for priority, queued_at, pk in rows]

    def holding_slots(self) -> RunQuerySet:
        """In flight: handed out, or under a lease. Found first, so that no order makes the planner walk the history."""
        held = ArraySubquery(WorkflowRun.objects.filter(_HELD).order_by().values("pk"))
        is_one = Func(
            F("pk"), held, arg_joiner=" = ANY(", template="%(expressions)s)", output_field=models.BooleanField()
        )
        return self.filter(_HELD, is_one)

    def silent_since(self, moment: datetime) -> RunQuerySet:
        return (
            self.filter(status__in=states.LEASED)
            .alias(heard=Coalesce("last_heartbeat_at", "claimed_at"))
            .filter(heard__lt=moment)
            .order_by("deadline_at")
        )

    def overdue(self, now: datetime) -> RunQuerySet:
        return self.filter(status__in=states.LEASED, deadline_at__lt=now).order_by("deadline_at")

    def unowned(self, workflow_types: Sequence[str]) -> RunQuerySet:
        """Due runs of these types that name no owner."""
        return (
            self.alias(owner_key=_OWNER_KEY).filter(_READY, owner_key="", workflow_type__in=workflow_types).order_by()
        )

    def on_last_attempt(self, max_attempts: int) -> RunQuerySet:
        """Handed out twice at least, and no more than once again. `max_attempts`: where neither run nor rule says."""
        rule = RoutingRule.objects.filter(workflow_type=OuterRef("workflow_type")).values("max_attempts")
        limit = Coalesce("max_attempts", Subquery(rule), Value(max_attempts))
        return (
            self._handed_out()
            .alias(last=limit - 1)
            .filter(dispatch_attempts__gte=2)
            .filter(dispatch_attempts__gte=F("last"))
        )

    def given_back(self, times: int) -> RunQuerySet:
        """Open runs whose leases ended by a release that often."""
        releases = Count("leases__lease_no", filter=Q(leases__end_verb="release"))
        return self._handed_out().filter(lease_no__gte=times).alias(releases=releases).filter(releases__gte=times)

    def waiting_since(self, moment: datetime) -> RunQuerySet:
        """Due, and in the queue since then. `created_at` stands beside `queued_at` for the index."""
        return self.filter(_READY, queued_at__lt=moment, created_at__lt=moment).order_by("created_at", "id")

    def stopped_since(self, moment: datetime) -> RunQuerySet:
        """Paused, or before an approver."""
        return self.filter(status__in=[states.PAUSED, states.WAITING_FOR_APPROVAL], updated_at__lt=moment).order_by()

    def _handed_out(self) -> RunQuerySet:
        return self.filter(_REQUEUED | _NOT_QUEUED).order_by()


class WorkflowRun(models.Model):
    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workflow_type = models.CharField(max_length=100)
    owner_agent_id = models.CharField(max_length=100, null=True, blank=True, help_text="The agent that the run names.")
    target_agent_id = models.CharField(max_length=100, null=True, editable=False)
    initiator = models.CharField(max_length=200, null=True, blank=True)
    status = models.CharField(max_length=24, choices=list(states.LABELS.items()), default=states.QUEUED, editable=False)
    current_step = models.CharField(max_length=200, null=True, editable=False)
    input_payload = models.JSONField(default=dict, blank=True)
    output_summary = models.JSONField(default=dict, editable=False)
    last_error = models.TextField(null=True, editable=False)
    last_error_at = models.DateTimeField(null=True, editable=False)

    priority = models.IntegerField(default=0, help_text="Higher goes first within its type.")
    not_before = models.DateTimeField(null=True, blank=True, help_text="Not dispatched before this time.")
    max_attempts = models.IntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Hand-outs in all. Empty: the rule's, else the server's setting.",
    )
    dispatch_attempts = models.IntegerField(default=0, editable=False)

    queued_at = models.DateTimeField(editable=False)
    dispatched_at = models.DateTimeField(null=True, editable=False)
    claimed_at = models.DateTimeField(null=True, editable=False)
    claimed_by = models.CharField(max_length=100, null=True, editable=False)
    claim_session_id = models.CharField(max_length=200, null=True, editable=False)
    lease_no = models.IntegerField(default=0, editable=False)
    started_at = models.DateTimeField(null=True, editable=False)
    last_heartbeat_at = models.DateTimeField(null=True, editable=False)
    deadline_at = models.DateTimeField(null=True, editable=False)
    finished_at = models.DateTimeField(null=True, editable=False)
    progress_percent = models.SmallIntegerField(null=True, editable=False)
    progress_message = models.CharField(max_length=500, null=True, editable=False)
    operator_notes = models.TextField(null=True, editable=False)
    gateway_session_id = models.CharField(max_length=200, null=True, editable=False)
    gateway_session_active = models.BooleanField(default=False, editable=False)

    input_tokens = models.BigIntegerField(null=True, editable=False)
    output_tokens = models.BigIntegerField(null=True, editable=False)
    cached_tokens = models.BigIntegerField(null=True, editable=False)
    model_id = models.CharField(max_length=200, null=True, editable=False)
    cost_estimate = models.DecimalField(max_digits=20, decimal_places=10, null=True, editable=False)
    currency = models.CharField(max_length=3, null=True, editable=False)
    reported_at = models.DateTimeField(null=True, editable=False)
    # Who pays: copied at dispatch, so that a later change of route or department moves no past spend.
    charge_agent_id = models.CharField(max_length=100, null=True, editable=False)
    charge_department_id = models.CharField(max_length=100, null=True, editable=False)
    charge_project = models.CharField(max_length=100, null=True, editable=False)

    # The actor that created it; idempotency keys are its own.
    key_space = models.CharField(max_length=200, editable=False)
    idempotency_key = models.CharField(max_length=200, null=True, editable=False)
    idempotency_digest = models.CharField(max_length=64, null=True, editable=False)
    last_seq = models.IntegerField(default=0, editable=False)
    # Its end is in `run_rollups`; `models/rollup.py` alone writes it.
    counted = models.BooleanField(default=False, db_default=False, editable=False)
    created_at = models.DateTimeField(db_default=TransactionTime(), editable=False)
    updated_at = models.DateTimeField(db_default=TransactionTime(), editable=False)

    objects = RunQuerySet.as_manager()

    class Meta:
        db_table = "workflow_runs"
        verbose_name = "run"
        ordering = ["-created_at", "-id"]
        indexes = [
            # dispatcher/dispatch: the next pairs (loose scan), and the oldest of a pair by priority
            models.Index(
                "workflow_type", _OWNER_KEY, F("priority").desc(), "queued_at", "id", condition=_READY, name="run_ready"
            ),
            # dispatcher/promote: what is due; the loop's alarm clock: what is due next
            models.Index(fields=["not_before"], condition=_PARKED, name="run_parked"),
            # admission: who holds the slots of a type, of an agent; recovery: leases that went silent
            models.Index(fields=["workflow_type"], condition=_HELD, name="run_held_by_type"),
            models.Index(fields=["target_agent_id"], condition=_HELD, name="run_held_by_agent"),
            # agents' poll; recovery of unclaimed hand-outs
            models.Index(
                fields=["target_agent_id", "-priority", "dispatched_at", "created_at", "id"],
                condition=Q(status=states.DISPATCHED),
                name="run_pending",
            ),
            models.Index(fields=["dispatched_at"], condition=Q(status=states.DISPATCHED), name="run_unclaimed"),
            # time_out in dispatcher and monitor
            models.Index(fields=["deadline_at"], condition=Q(status__in=states.LEASED), name="run_deadline"),
            # stats: queued runs that were dispatched before; /stuck: those of them that had many hand-outs
            models.Index(fields=["id"], condition=_REQUEUED, name="run_requeued"),
            # stats, and the fold: what ended and isn't in run_rollups yet
            models.Index(fields=["finished_at"], condition=_UNCOUNTED, name="run_uncounted"),
            # lists, newest first
            models.Index(fields=["-created_at", "-id"], name="run_newest"),
            models.Index(fields=["status", "-created_at", "-id"], name="run_newest_by_status"),
            models.Index(fields=["workflow_type", "-created_at", "-id"], name="run_newest_by_type"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=states.STATES), name="run_status_known"),
            models.CheckConstraint(
                condition=Q(status__in=states.FINAL, finished_at__isnull=False)
                | (~Q(status__in=states.FINAL) & Q(finished_at__isnull=True)),
                name="run_finished_when_final",
            ),
            models.CheckConstraint(
                condition=Q(counted=False) | Q(finished_at__isnull=False), name="run_counted_when_final"
            ),
            models.CheckConstraint(
                condition=~Q(status__in=states.LEASED)
                | Q(
                    claim_session_id__isnull=False,
                    claimed_by__isnull=False,
                    claimed_at__isnull=False,
                    deadline_at__isnull=False,
                    lease_no__gte=1,
                ),
                name="run_leased_has_lease",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=[states.QUEUED, states.DISPATCHED, states.WAITING_FOR_APPROVAL])
                | Q(claim_session_id__isnull=True),
                name="run_unleased_has_none",
            ),
            models.CheckConstraint(
                condition=~Q(status=states.DISPATCHED)
                | Q(target_agent_id__isnull=False, dispatched_at__isnull=False, dispatch_attempts__gte=1),
                name="run_dispatched_has_target",
            ),
            models.CheckConstraint(
                condition=Q(dispatch_attempts__gte=0, lease_no__gte=0)
                & (Q(max_attempts__isnull=True) | Q(max_attempts__gte=1, max_attempts__lte=1000)),
                name="run_counts_range",
            ),
            models.CheckConstraint(
                condition=~Q(workflow_type="") & ~Q(owner_agent_id="") & ~Q(claim_session_id=""),
                name="run_names_not_empty",
            ),
            models.UniqueConstraint(
                fields=["key_space", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="run_idempotency_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workflow_type} {self.pk}"
