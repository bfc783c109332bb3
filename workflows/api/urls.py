"""Everything under /api. No trailing slashes."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

from workflows.api.fleet_views import Agents, Departments
from workflows.api.operator_views import Steering
from workflows.api.report_views import Reports
from workflows.api.routing_views import Routes
from workflows.api.run_views import Runs
from workflows.api.token_views import Tokens

RUN = "workflow-runs/<str:run_id>"
VERBS = ("claim", "start", "heartbeat", "complete", "fail", "release", "cancel")

urlpatterns = [
    path("workflow-runs", Runs.as_view({"get": "list", "post": "create"}), name="runs"),
    path("workflow-runs/pending", Runs.as_view({"get": "pending"}), name="pending"),
    path("workflow-runs/claim-next", Runs.as_view({"post": "claim_next"}), name="claim-next"),
    path("workflow-runs/dispatcher/stats", Runs.as_view({"get": "stats"}), name="stats"),
    path("workflow-runs/active", Steering.as_view({"get": "active"}), name="active"),
    path("workflow-runs/stuck", Steering.as_view({"get": "stuck"}), name="stuck"),
    path("workflow-runs/bulk", Steering.as_view({"post": "bulk"}), name="bulk"),
    path(RUN, Runs.as_view({"get": "retrieve", "delete": "cancel", "patch": "edit"}), name="run"),
    path(f"{RUN}/explain", Runs.as_view({"get": "explain"}), name="explain"),
    *(path(f"{RUN}/{verb}", Runs.as_view({"post": verb}), name=verb) for verb in VERBS),
    path(f"{RUN}/step", Reports.as_view({"post": "step"}), name="step"),
    path(f"{RUN}/artifacts", Reports.as_view({"get": "artifacts", "post": "add_artifact"}), name="artifacts"),
    path(f"{RUN}/bind-session", Reports.as_view({"post": "bind_session"}), name="bind-session"),
    path(f"{RUN}/unbind-session", Reports.as_view({"post": "unbind_session"}), name="unbind-session"),
    path(f"{RUN}/run-now", Steering.as_view({"post": "run_now"}), name="run-now"),
    path(
        "sessions/<path:session_id>/heartbeat",
        Reports.as_view({"post": "session_heartbeat"}),
        name="session-heartbeat",
    ),
    path("workflow-routing", Routes.as_view({"get": "list", "put": "upsert"}), name="routes"),
    path(
        "workflow-routing/<str:workflow_type>",
        Routes.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
        name="route",
    ),
    path("agents", Agents.as_view({"get": "list", "post": "create"}), name="agents"),
    path("agents/<str:agent_id>", Agents.as_view({"get": "retrieve", "patch": "partial_update"}), name="agent"),
    path("agents/<str:agent_id>/tokens", Tokens.as_view({"get": "list", "post": "create"}), name="tokens"),
    path("agents/<str:agent_id>/tokens/<str:key>", Tokens.as_view({"delete": "destroy"}), name="token"),
    path(
        "departments/<str:department_id>",
        Departments.as_view({"get": "retrieve", "patch": "partial_update"}),
        name="department",
    ),
    path("departments", Departments.as_view({"get": "list", "post": "create"}), name="departments"),
    path("schema", SpectacularJSONAPIView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
]
