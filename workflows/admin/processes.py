"""Our own processes: who was heard from, and when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from governance.ages import ago
from governance.staff import ReadOnlyAdmin, badge
from workflows.models import ProcessInstance

SILENT_AFTER = timedelta(seconds=90)


@admin.register(ProcessInstance)
class ProcessAdmin(ReadOnlyAdmin):
    list_display = ("kind", "where", "condition", "heard_from", "up_since", "tick", "trouble")
    list_display_links = ("kind", "where")
    list_filter = ("kind",)
    ordering = ("-last_seen_at",)
    sortable_by = ("kind", "heard_from", "up_since")
    empty_hint = "No process was heard from yet. `python3 -m dispatcher_project up` starts all three."
    fields = (
        "kind",
        "host",
        "pid",
        "started_at",
        "last_seen_at",
        "stopped_at",
        "poll_interval_ms",
        "last_tick_at",
        "last_tick_error",
        "last_tick_summary",
        "recovery_suspended_until",
    )

    @admin.display(description="Where", ordering="host")
    def where(self, process: ProcessInstance) -> SafeString:
        return format_html(
            "<span class='nowrap'>{}<span class='quiet'> process {}</span></span>", process.host, process.pid
        )

    @admin.display(description="State")
    def condition(self, process: Any) -> SafeString:
        if process.stopped_at:
            return badge("stopped", "grey")
        return badge("silent", "red") if silent(process) else badge("alive", "green")

    @admin.display(description="Heard from", ordering="last_seen_at")
    def heard_from(self, process: Any) -> str:
        return ago(process.last_seen_at, process.read_at)

    @admin.display(description="Started", ordering="started_at")
    def up_since(self, process: Any) -> str:
        return ago(process.started_at, process.read_at)

    @admin.display(description="Last tick")
    def tick(self, process: Any) -> str:
        return ago(process.last_tick_at, process.read_at) if process.last_tick_at else "–"

    @admin.display(description="Its error")
    def trouble(self, process: ProcessInstance) -> str:
        return (process.last_tick_error or "–")[:120]


def silent(process: Any) -> bool:
    """Not heard from for three of its polls, and never sooner than SILENT_AFTER."""
    polls = timedelta(milliseconds=3 * (process.poll_interval_ms or 0))
    quiet: timedelta = process.read_at - process.last_seen_at
    return quiet > max(SILENT_AFTER, polls)
