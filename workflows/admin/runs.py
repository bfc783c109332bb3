"""Runs in the admin: found, read, launched, and steered by the verbs."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Func, OuterRef, Q, QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path

from governance.staff import ReadAt, ReadOnlyAdmin, StaffChangeList, actor
from routing.models import RoutingRule
from workflows import admission
from workflows.admin import filters, pages
from workflows.admin.columns import RunColumns
from workflows.admin.launching import LaunchForm
from workflows.admin.steering import AT_ONCE, OFFERS, Offer, ReasonForm, steer
from workflows.models import WorkflowRun, rows

SHOWN_CHARACTERS = 200_000
LISTED = (
    "id", "workflow_type", "status", "owner_agent_id", "target_agent_id", "priority", "not_before", "max_attempts",
    "dispatch_attempts", "last_heartbeat_at", "progress_percent", "progress_message", "last_error", "created_at",
)  # fmt: skip


class Pretty(Func):
    """The payload as indented text, by PostgreSQL, whose numbers are exact."""

    function = "jsonb_pretty"
    output_field = TextField()


def rule_of_run() -> QuerySet[RoutingRule]:
    return RoutingRule.objects.filter(pk=OuterRef("workflow_type"))


class RunChangeList(StaffChangeList):
    """Without payloads; with why each waiting run of the page waits, asked once for all."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        found = super().get_queryset(request, exclude_parameters).only(*LISTED)
        return found.annotate(rule_max_attempts=rule_of_run().values("max_attempts"))

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        reasons = admission.hold_reasons([vars(run) for run in self.result_list])
        for run in self.result_list:
            run.hold_reason = reasons[run.pk]


@admin.register(WorkflowRun)
class RunAdmin(RunColumns, ReadOnlyAdmin):
    list_display = ("run", "state", "agent", "priority", "attempts", "age", "last_sign", "note")
    list_display_links = ("run",)
    list_filter = (filters.StatusFilter, filters.TypeFilter, filters.AgentFilter, "created_at")
    search_fields = ("id",)  # turns the search box on; get_search_results says what it does
    search_help_text = "Run ID (or its end), type, agent or session"
    sortable_by = ("priority", "attempts", "age")
    empty_hint = "No runs yet. Launch one with “Add run”, by `dispatcher-agent submit`, or by POST /api/workflow-runs."
    change_form_template = "workflows/run.html"
    fieldsets = (
        (None, {"fields": (
            ("state", "type_link", "agent_link"), ("id", "made_by"), ("priority", "hand_outs", "not_before"),
        )}),
        ("Lease", {"fields": (
            ("claimed_by", "claim_session_id", "lease_no"), ("current_step", "progress"), ("heartbeat", "deadline_at"),
        )}),
        ("Times", {"fields": (
            ("created_at", "queued_at", "dispatched_at"), ("claimed_at", "started_at", "finished_at"),
        )}),
        ("Payload", {"fields": ("input", "output", ("last_error", "last_error_at"))}),
        ("Usage and charge", {"classes": ("collapse",), "fields": (
            ("model_id", "input_tokens", "output_tokens", "cached_tokens"),
            ("cost_estimate", "currency", "reported_at"),
            ("charge_agent_id", "charge_department_id", "charge_project"),
        )}),
    )  # fmt: skip

    # --- who may what

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.operates(request)

    # --- the list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RunChangeList]:
        return RunChangeList

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        term = search_term.strip().replace("\x00", "")
        if not term:
            return queryset, False
        try:
            return queryset.filter(pk=uuid.UUID(term)), False
        except ValueError:
            pass
        names = ("workflow_type", "target_agent_id", "owner_agent_id", "claimed_by", "claim_session_id", "id_text")
        found = Q()
        for name in names:
            found |= Q(**{f"{name}__icontains": term})
        return queryset.alias(id_text=Cast("id", TextField())).filter(found), False

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        found: dict[str, Any] = super().get_actions(request)
        for verb, offer in OFFERS.items():
            if offer.allowed(actor(request.user)):
                found[verb] = (_action(offer), verb, f"{offer.label} selected runs")
        return found

    def steer_selected(self, request: HttpRequest, queryset: QuerySet[Any], offer: Offer) -> HttpResponse | None:
        runs = list(queryset.only("id", "workflow_type", "status").order_by("created_at", "id")[: AT_ONCE + 1])
        if len(runs) > AT_ONCE:
            self.message_user(request, f"Select at most {AT_ONCE} runs at once.", messages.ERROR)
            return None
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            self._steer(request, offer, runs, form.cleaned_data["reason"])
            return None
        who = actor(request.user)
        fitting = sum(offer.fits(run.status, who) for run in runs)
        return self._page(
            request, "workflows/steer.html", f"{offer.label} {pages.counted(len(runs))}",
            form=form, offer=offer, runs=runs, fitting=fitting, action=offer.verb,
        )  # fmt: skip

    # --- one run

    def get_urls(self) -> list[Any]:
        steering = path(
            "<uuid:pk>/<str:verb>/steer/", self.admin_site.admin_view(self.steer_view), name="workflows_run_steer"
        )
        return [steering, *super().get_urls()]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        try:
            pk = WorkflowRun._meta.pk.to_python(object_id)
        except ValidationError:
            return None
        rule = rule_of_run()
        return (
            self.get_queryset(request)
            .defer("input_payload", "output_summary")
            .annotate(
                read_at=ReadAt(),
                rule_agent=rule.values("agent_id"),
                rule_max_attempts=rule.values("max_attempts"),
                input_text=Left(Pretty("input_payload"), SHOWN_CHARACTERS),
                output_text=Left(Pretty("output_summary"), SHOWN_CHARACTERS),
            )
            .filter(pk=pk)
            .first()
        )

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = rows.get(uuid.UUID(object_id)) if pages.is_uuid(object_id) else None
        context = pages.run_context(row, actor(request.user)) if row else {}
        return super().change_view(request, object_id, form_url, {**context, **(extra_context or {})})

    def steer_view(self, request: HttpRequest, pk: uuid.UUID, verb: str) -> HttpResponse:
        run = WorkflowRun.objects.only("id", "workflow_type", "status").filter(pk=pk).first()
        offer = OFFERS.get(verb)
        if run is None or offer is None:
            raise Http404
        if not offer.allowed(actor(request.user)):
            raise PermissionDenied
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            self._steer(request, offer, [run], form.cleaned_data["reason"])
            return HttpResponseRedirect(pages.run_address(pk))
        fitting = int(offer.fits(run.status, actor(request.user)))
        return self._page(
            request, "workflows/steer.html", f"{offer.label} run", form=form, offer=offer, runs=[run], fitting=fitting
        )

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = LaunchForm(request.POST or None)
        if form.is_valid() and (made := form.launch(actor(request.user))):
            run = WorkflowRun.objects.only("id", "workflow_type").get(pk=made.run["id"])
            self._say_launched(request, run, made.run, is_new=made.is_new)
            return HttpResponseRedirect(pages.run_address(run.pk))
        return self._page(request, "workflows/launch.html", "Launch a run", form=form, media=self.media + form.media)

    # --- shared

    def _say_launched(self, request: HttpRequest, run: WorkflowRun, row: rows.Row, *, is_new: bool) -> None:
        if not is_new:
            self.message_user(request, "This form has launched this run before; nothing was launched again.")
            return
        self.log_addition(request, run, "Launched.")
        self.message_user(request, "Launched.", messages.SUCCESS)
        reasons = admission.explain(row, max_attempts=settings.DISPATCHER_MAX_DISPATCH_RETRIES)
        if any(reason.code == "no_route" for reason in reasons):
            self.message_user(
                request, "Nobody takes it yet: no rule routes its type, and it names no agent.", messages.WARNING
            )

    def _steer(self, request: HttpRequest, offer: Offer, runs: list[Any], reason: str) -> None:
        outcome = steer(offer, runs, actor=actor(request.user), reason=reason)
        if outcome.done:
            self.message_user(request, f"{pages.counted(outcome.done)} {offer.done}.", messages.SUCCESS)
        elif not outcome.refusals:
            self.message_user(request, f"Nothing to do: {offer.done} before.")
        for refusal in outcome.refusals[:5]:
            self.message_user(request, refusal, messages.ERROR)
        if len(outcome.refusals) > 5:
            self.message_user(request, f"… and {len(outcome.refusals) - 5} more refused.", messages.ERROR)

    def _page(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        common = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, template, {**common, **context})


def _action(offer: Offer) -> Any:
    def run_action(model_admin: RunAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return model_admin.steer_selected(request, queryset, offer)

    return run_action
