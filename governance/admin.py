"""The fleet in the admin: departments, agents, and their tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_variables

from governance.ages import ago
from governance.models import Agent, AgentToken, Department
from governance.models.token import MAX_DAYS
from governance.staff import ReadAt, ReadOnlyAdmin, StaffAdmin, VersionedForm, actor, badge

admin.site.site_header = "Workflow Dispatcher"
admin.site.site_title = "Workflow Dispatcher"
admin.site.index_title = "Runs, routing and fleet"
admin.site.enable_nav_sidebar = False  # the lists need the width

TOKEN_COLOURS = {"active": "green", "expired": "amber", "revoked": "grey"}


@admin.register(Department)
class DepartmentAdmin(StaffAdmin):
    list_display = ("department_id", "name", "created_at")
    search_fields = ("department_id", "name")
    fields = ("department_id", "name")
    empty_hint = "No departments yet. Agents may belong to one."


class AgentForm(VersionedForm):
    class Meta:
        model = Agent
        fields = (
            "agent_id",
            "display_name",
            "role",
            "capabilities",
            "department",
            "max_concurrent",
            "active",
            "inactive_reason",
        )


@admin.register(Agent)
class AgentAdmin(StaffAdmin):
    form = AgentForm
    rings_as = "agent"
    list_display = ("agent_id", "display_name", "role", "department", "skills", "limit", "availability", "heard_from")
    list_filter = ("role", "active", "department")
    list_select_related = ("department", "activity")
    search_fields = ("agent_id", "display_name")
    search_help_text = "ID or name"
    fieldsets = (
        (None, {"fields": ("agent_id", "display_name", "role", "capabilities", "department")}),
        (
            "Work",
            {
                "fields": ("max_concurrent", "active", "inactive_reason", "seen_version"),
                "description": "Limits count over all types of work; routing rules have limits of their own.",
            },
        ),
    )
    empty_hint = "No agents yet. Add one, then issue a token for it under Agent tokens."

    @admin.display(description="Capabilities")
    def skills(self, agent: Agent) -> str:
        return ", ".join(agent.capabilities) or "–"

    @admin.display(description="Limit", ordering="max_concurrent")
    def limit(self, agent: Agent) -> str:
        return "none" if agent.max_concurrent is None else str(agent.max_concurrent)

    @admin.display(description="State", ordering="active")
    def availability(self, agent: Agent) -> SafeString:
        return badge("active", "green") if agent.active else badge("inactive", "amber")

    @admin.display(description="Heard from", ordering="activity__last_seen_at")
    def heard_from(self, agent: Any) -> str:
        activity = getattr(agent, "activity", None)
        return ago(activity.last_seen_at if activity else None, agent.read_at)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """Its tokens go with it, though nobody may delete a token by itself."""
        to_delete, counts, missing, protected = super().get_deleted_objects(objs, request)
        return to_delete, counts, missing - {AgentToken._meta.verbose_name}, protected


class IssueForm(forms.Form):
    required_css_class = "required"
    agent = forms.ModelChoiceField(Agent.objects.all(), help_text="Whoever has the token acts as this agent.")
    days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_DAYS,
        label="Valid for days",
        help_text=f"1 to {MAX_DAYS}. Empty: until it is revoked.",
    )


class TokenStateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state.capitalize()) for state in TOKEN_COLOURS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AgentToken]) -> QuerySet[AgentToken]:
        expired = Q(expires_at__isnull=False, expires_at__lte=ReadAt())
        chosen = {
            "active": Q(revoked_at=None) & ~expired,
            "expired": Q(revoked_at=None) & expired,
            "revoked": Q(revoked_at__isnull=False),
        }.get(self.value() or "")
        return queryset.filter(chosen) if chosen is not None else queryset


@admin.register(AgentToken)
class AgentTokenAdmin(ReadOnlyAdmin):
    """Issued and revoked, never edited. The plain token is on the page that answers the form, and nowhere else."""

    list_display = ("key", "agent_id", "validity", "created_at", "created_by", "expires_at", "used")
    list_filter = (TokenStateFilter, "agent")
    search_fields = ("key", "agent__agent_id")
    search_help_text = "Key or agent"
    fields = ("key", "agent", "created_by", "created_at", "expires_at", "revoked_at", "last_used_at")
    actions = ("revoke_tokens",)
    empty_hint = "No tokens yet. Issue one for each agent; it is shown once."

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.operates(request)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return self.operates(request)

    @admin.display(description="State")
    def validity(self, token: Any) -> SafeString:
        state = token.state(token.read_at)
        return badge(state, TOKEN_COLOURS[state])

    @admin.display(description="Last used", ordering="last_used_at")
    def used(self, token: Any) -> str:
        return ago(token.last_used_at, token.read_at)

    @admin.action(description="Revoke selected tokens", permissions=["revoke"])
    def revoke_tokens(self, request: HttpRequest, queryset: QuerySet[AgentToken]) -> None:
        keys = list(queryset.filter(revoked_at=None).values_list("pk", flat=True))
        for key in keys:
            self.log_change(request, AgentToken.revoke(key), "Revoked.")
        messages.success(request, f"{len(keys)} revoked: refused from now on." if keys else "Nothing to revoke.")

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = IssueForm(request.POST or None)
        if form.is_valid():
            return self._issue(request, form)
        return self._page(request, "governance/token_issue.html", "Issue a token", form=form)

    @sensitive_variables("plain")
    def _issue(self, request: HttpRequest, form: IssueForm) -> HttpResponse:
        agent, days = form.cleaned_data["agent"], form.cleaned_data["days"]
        token, plain = AgentToken.issue(agent.pk, days=days, created_by=actor(request.user))
        self.log_addition(request, token, "Issued.")
        return self._page(request, "governance/token_issued.html", "Token issued", token=token, plain=plain)

    def _page(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, template, context)
