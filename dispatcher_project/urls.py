"""The whole URL map."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]

handler400 = "dispatcher_project.api_errors.bad_request"
handler403 = "dispatcher_project.api_errors.permission_denied"
handler404 = "dispatcher_project.api_errors.page_not_found"
handler500 = "dispatcher_project.api_errors.server_error"
