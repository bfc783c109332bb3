"""Everything under /api. No trailing slashes."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

from workflows.api.fleet_views import Agents, Departments
from workflows.api.routing_views import Routes
from workflows.api.run_views import Runs

RUN = "workflow-runs/<str:run_id>"
VERBS = ("claim", "start", "heartbeat", "complete", "fail", "release", "cancel")

urlpatterns = [
    path("workflow-runs", Runs.as_view({"get": "list", "post": "create"}), name="runs"),
    path("workflow-runs/pending", Runs.as_view({"get": "pending"}), name="pending"),
    path("workflow-runs/claim-next", Runs.as_view({"post": "claim_next"}), name="claim-next"),
    path("workflow-runs/dispatcher/stats", Runs.as_view({"get": "stats"}), name="stats"),
    path(RUN, Runs.as_view({"get": "retrieve", "delete": "cancel"}), name="run"),
    path(f"{RUN}/explain", Runs.as_view({"get": "explain"}), name="explain"),
    *(path(f"{RUN}/{verb}", Runs.as_view({"post": verb}), name=verb) for verb in VERBS),
    path("workflow-routing", Routes.as_view({"get": "list", "put": "upsert"}), name="routes"),
    path(
        "workflow-routing/<str:workflow_type>",
        Routes.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
        name="route",
    ),
    path("agents", Agents.as_view({"get": "list", "post": "create"}), name="agents"),
    path("agents/<str:agent_id>", Agents.as_view({"get": "retrieve", "patch": "partial_update"}), name="agent"),
    path("departments", Departments.as_view({"get": "list", "post": "create"}), name="departments"),
    path("schema", SpectacularJSONAPIView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
]
