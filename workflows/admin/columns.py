"""The computed columns of a run, in the list and on its page."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from governance.ages import age, ago
from workflows.admin import looks
from workflows.models import WorkflowRun

NOTE_CHARACTERS = 80
NOTHING = ("{\n}", "null")  # as jsonb_pretty writes it


class RunColumns:
    # --- in the list

    @admin.display(description="Run", ordering="workflow_type")
    def run(self, run: WorkflowRun) -> SafeString:
        """Its type and the end of its id: a UUIDv7 begins with the time, which neighbours share."""
        return format_html(
            "<span class='nowrap'>{}</span> <span class='quiet mono'>…{}</span>", run.workflow_type, str(run.pk)[-8:]
        )

    @admin.display(description="Status", ordering="status")
    def state(self, run: WorkflowRun) -> SafeString:
        return looks.status(run.status)

    @admin.display(description="Agent", ordering="target_agent_id")
    def agent(self, run: WorkflowRun) -> str:
        return run.target_agent_id or run.owner_agent_id or "–"

    @admin.display(description="Attempts", ordering="dispatch_attempts")
    def attempts(self, run: WorkflowRun) -> int:
        return run.dispatch_attempts

    @admin.display(description="Age", ordering="created_at")
    def age(self, run: Any) -> SafeString:
        return format_html(
            "<span class='nowrap' title='{}'>{}</span>",
            f"{run.created_at:%Y-%m-%d %H:%M:%S} UTC",
            age(run.read_at - run.created_at),
        )

    @admin.display(description="Last sign", ordering="last_heartbeat_at")
    def last_sign(self, run: Any) -> str:
        return ago(run.last_heartbeat_at, run.read_at) if run.last_heartbeat_at else "–"

    @admin.display(description="Note")
    def note(self, run: Any) -> str:
        """What there is to say in its state: why it waits, how far it is, what went wrong."""
        waits = run.hold_reason.replace("_", " ") if run.hold_reason else ""
        text = waits or self.progress(run) or run.last_error or "–"
        return text if len(text) <= NOTE_CHARACTERS else f"{text[:NOTE_CHARACTERS]}…"

    @admin.display(description="Progress")
    def progress(self, run: WorkflowRun) -> str:
        percent = "" if run.progress_percent is None else f"{run.progress_percent} %"
        return " ".join(part for part in (percent, run.progress_message or "") if part)

    # --- on its page

    @admin.display(description="Type")
    def type_link(self, run: Any) -> str | SafeString:
        if run.rule_agent is None:
            return str(run.workflow_type)
        address = reverse("admin:routing_routingrule_change", args=[run.workflow_type])
        return format_html('<a href="{}">{}</a>', address, run.workflow_type)

    @admin.display(description="Agent")
    def agent_link(self, run: Any) -> str | SafeString:
        """Whom it went to, else whom it names, else whom the rule says right now."""
        name = run.target_agent_id or run.owner_agent_id or run.rule_agent
        if not name:
            return "–"
        by_rule = "" if run.target_agent_id or run.owner_agent_id else " by its rule"
        return format_html(
            '<a href="{}">{}</a>{}', reverse("admin:governance_agent_change", args=[name]), name, by_rule
        )

    @admin.display(description="Made by")
    def made_by(self, run: Any) -> str:
        said = f", for {run.initiator}" if run.initiator and not run.key_space.endswith(f":{run.initiator}") else ""
        return f"{run.key_space}{said}, {ago(run.created_at, run.read_at)}"

    @admin.display(description="Attempts")
    def hand_outs(self, run: Any) -> str:
        limit = run.max_attempts or run.rule_max_attempts or settings.DISPATCHER_MAX_DISPATCH_RETRIES
        return f"{run.dispatch_attempts} of {limit}"

    @admin.display(description="Heartbeat")
    def heartbeat(self, run: Any) -> str:
        return ago(run.last_heartbeat_at, run.read_at) if run.last_heartbeat_at else "–"

    @admin.display(description="Input")
    def input(self, run: Any) -> str | SafeString:
        return payload(run.input_text)

    @admin.display(description="Output")
    def output(self, run: Any) -> str | SafeString:
        return payload(run.output_text)


def payload(text: str) -> str | SafeString:
    if text in NOTHING:
        return "–"
    return format_html("<pre class='payload'>{}</pre>", text)
