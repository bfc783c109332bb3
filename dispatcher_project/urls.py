"""The whole URL map; `workflows/api/urls.py` has what lies under /api."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from workflows.api import health
from workflows.api.metrics import metrics

urlpatterns = [
    path("", RedirectView.as_view(url="/admin/"), name="home"),
    path("admin/", admin.site.urls),
    path("api/", include("workflows.api.urls")),
    path("health/live", health.live, name="live"),
    path("health/ready", health.ready, name="ready"),
    path("metrics", metrics, name="metrics"),
]

handler400 = "dispatcher_project.api_errors.bad_request"
handler403 = "dispatcher_project.api_errors.permission_denied"
handler404 = "dispatcher_project.api_errors.page_not_found"
handler500 = "dispatcher_project.api_errors.server_error"
