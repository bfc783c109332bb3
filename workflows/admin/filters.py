"""Filters of the run list. Their choices come from small tables, never from a scan of the runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from governance.models import Agent
from routing.models import RoutingRule
from workflows import states
from workflows.models import WorkflowRun

OFFERED = 50


class OfferingFilter(admin.SimpleListFilter):
    """Offers what is known, and what the address already says."""

    parameter_name: str

    @abstractmethod
    def known(self) -> Iterable[str]:
        """The names to offer."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = self.used_parameters.get(self.parameter_name)
        names = list(self.known())
        if isinstance(chosen, str) and chosen not in names:
            names.insert(0, chosen)
        return [(name, name) for name in names]


class TypeFilter(OfferingFilter):
    title = "type"
    parameter_name = "type"

    def known(self) -> Iterable[str]:
        return RoutingRule.objects.order_by("workflow_type").values_list("workflow_type", flat=True)[:OFFERED]

    def queryset(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> QuerySet[WorkflowRun]:
        return queryset.filter(workflow_type=self.value()) if self.value() else queryset


class AgentFilter(OfferingFilter):
    title = "agent"
    parameter_name = "agent"

    def known(self) -> Iterable[str]:
        return Agent.objects.values_list("agent_id", flat=True)[:OFFERED]

    def queryset(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> QuerySet[WorkflowRun]:
        agent = self.value()
        if not agent:
            return queryset
        return queryset.filter(Q(target_agent_id=agent) | Q(target_agent_id=None, owner_agent_id=agent))


class StatusFilter(admin.SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("open", "Open (not ended)"), *states.LABELS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[WorkflowRun]) -> QuerySet[WorkflowRun]:
        if self.value() == "open":
            return queryset.filter(status__in=states.OPEN)
        return queryset.filter(status=self.value()) if self.value() else queryset
