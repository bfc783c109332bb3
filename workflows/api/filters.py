"""Which runs a list shows: the filters of `GET /workflow-runs`, and whose runs an actor may see."""

from __future__ import annotations

import uuid
from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import Q, QuerySet
from django.http import QueryDict

from dispatcher_project.errors import Invalid
from governance.actors import Actor
from governance.rules import sees_everything
from routing.models import RoutingRule
from workflows import states
from workflows.api.fields import parse_moment
from workflows.api.query import MAX_NAME, Query
from workflows.models import WorkflowRun
from workflows.models.run import RunQuerySet

MAX_SEARCH = 200
SEARCHED = (
    "workflow_type",
    "owner_agent_id",
    "target_agent_id",
    "claimed_by",
    "initiator",
    "current_step",
    "last_error",
)


def visible_to(actor: Actor) -> RunQuerySet:
    """The runs for which `fence.is_visible` says yes, as one query."""
    runs: RunQuerySet = WorkflowRun.objects.all()
    if sees_everything(actor):
        return runs
    mine = Q(key_space=str(actor)) | Q(target_agent_id=actor.id) | Q(claimed_by=actor.id)
    queued = Q(target_agent_id__isnull=True)
    routed = RoutingRule.objects.filter(agent_id=actor.id).values("workflow_type")
    for_me = Q(owner_agent_id=actor.id) | Q(owner_agent_id__isnull=True, workflow_type__in=routed)
    return runs.filter(mine | (queued & for_me))


class RunFilter(django_filters.FilterSet):
    status = django_filters.MultipleChoiceFilter(choices=[(state, state) for state in states.STATES])
    workflow_type = django_filters.CharFilter(max_length=MAX_NAME)
    owner_agent_id = django_filters.CharFilter(max_length=MAX_NAME)
    created_after = django_filters.CharFilter(method="after")
    created_before = django_filters.CharFilter(method="before")
    search = django_filters.CharFilter(method="containing", max_length=MAX_SEARCH)

    class Meta:
        model = WorkflowRun
        fields: list[str] = []

    def after(self, runs: QuerySet[WorkflowRun], name: str, value: str) -> QuerySet[WorkflowRun]:
        return runs.filter(created_at__gt=_moment(name, value))

    def before(self, runs: QuerySet[WorkflowRun], name: str, value: str) -> QuerySet[WorkflowRun]:
        return runs.filter(created_at__lt=_moment(name, value))

    def containing(self, runs: QuerySet[WorkflowRun], name: str, value: str) -> QuerySet[WorkflowRun]:
        found = Q()
        for column in SEARCHED:
            found |= Q(**{f"{column}__icontains": value})
        run_id = _uuid(value)
        return runs.filter(found | Q(pk=run_id) if run_id else found)


FILTERS = tuple(RunFilter.base_filters)
_SEVERAL = ("status",)


def filtered(runs: QuerySet[WorkflowRun], query: Query) -> QuerySet[WorkflowRun]:
    """Errors: Invalid, naming the parameter (an unknown status, a time without its zone, …)."""
    data = QueryDict(mutable=True)
    for name in FILTERS:
        values = query.get(name, [])
        if name not in _SEVERAL and len(set(values)) > 1:
            raise Invalid(fields={name: "is given more than once"})
        if "" in values:
            raise Invalid(fields={name: "must not be empty"})
        if values:
            data.setlist(name, values)
    found = RunFilter(data, queryset=runs)
    if not found.is_valid():
        errors: dict[str, Any] = found.errors
        raise Invalid(fields={name: " ".join(messages) for name, messages in errors.items()})
    return found.qs


def _moment(name: str, value: str) -> Any:
    # A plus sign that wasn't percent-encoded arrives as a blank.
    moment = parse_moment(value.replace(" ", "+") if "T" in value else value)
    if moment is None:
        raise Invalid(fields={name: "must be an ISO 8601 time with its zone, like 2026-08-24T12:00:00Z"})
    return moment


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
