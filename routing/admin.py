"""Routing rules in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from governance.models import Agent
from governance.staff import StaffAdmin, Suggesting, VersionedForm, badge
from routing.models import RoutingRule


class RoutingRuleForm(VersionedForm):
    class Meta:
        model = RoutingRule
        fields = (
            "workflow_type",
            "agent_id",
            "priority",
            "max_concurrent",
            "timeout_minutes",
            "max_attempts",
            "active",
            "inactive_reason",
        )
        widgets = {"agent_id": Suggesting(Agent.objects.values_list("agent_id", flat=True))}


@admin.register(RoutingRule)
class RoutingRuleAdmin(StaffAdmin):
    form = RoutingRuleForm
    rings_as = "type"
    list_display = ("workflow_type", "agent", "priority", "max_concurrent", "timeout", "max_attempts", "availability")
    list_filter = ("active",)
    search_fields = ("workflow_type", "agent_id")
    search_help_text = "Type or agent"
    fieldsets = (
        (None, {"fields": ("workflow_type", "agent_id", "priority")}),
        ("Limits", {"fields": ("max_concurrent", "timeout_minutes", "max_attempts")}),
        ("State", {"fields": ("active", "inactive_reason", "seen_version")}),
    )
    empty_hint = "No rules yet: runs wait, unless they name an agent themselves. Add a rule for each type of work."

    def get_queryset(self, request: HttpRequest) -> QuerySet[RoutingRule]:
        known = Agent.objects.filter(pk=OuterRef("agent_id"))
        return super().get_queryset(request).annotate(agent_known=Exists(known))

    @admin.display(ordering="agent_id")
    def agent(self, rule: Any) -> str | SafeString:
        return rule.agent_id if rule.agent_known else format_html("{} {}", rule.agent_id, badge("unknown", "amber"))

    @admin.display(ordering="timeout_minutes")
    def timeout(self, rule: RoutingRule) -> str:
        return f"{rule.timeout_minutes} min"

    @admin.display(description="State", ordering="active")
    def availability(self, rule: RoutingRule) -> SafeString:
        return badge("active", "green") if rule.active else badge("inactive", "amber")

    def save_model(self, request: HttpRequest, obj: RoutingRule, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not Agent.objects.filter(pk=obj.agent_id).exists():
            messages.warning(
                request,
                f"No agent {obj.agent_id!r} is known. The rule is saved; its runs are handed out all the same, "
                "and fail if nobody claims them for it.",
            )
