"""The form that launches a run: checks shapes, then calls the verb."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.admin.widgets import AdminSplitDateTime

from dispatcher_project import json_values
from dispatcher_project.errors import DomainError, Invalid
from governance.actors import Actor
from governance.models import Agent
from governance.staff import Suggesting
from routing.models import MAX_ATTEMPTS, NAME, RoutingRule
from workflows import lifecycle
from workflows.lifecycle import Created

MIN_INT, MAX_INT = -(2**31), 2**31 - 1


class JSONText(forms.CharField):
    """Strict JSON; its numbers stay exact."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return None
        try:
            return json_values.loads(text)
        except json_values.BadJSON as error:
            raise forms.ValidationError(str(error)) from None


class LaunchForm(forms.Form):
    required_css_class = "required"
    workflow_type = forms.CharField(
        label="Type",
        max_length=100,
        validators=[NAME],
        widget=Suggesting(RoutingRule.objects.order_by("workflow_type").values_list("workflow_type", flat=True)),
        help_text="Its routing rule says which agent gets the run.",
    )
    input_payload = JSONText(
        label="Input",
        required=False,
        initial="{}",
        strip=True,
        widget=forms.Textarea(attrs={"rows": 8, "class": "vLargeTextField mono", "spellcheck": "false"}),
        help_text="JSON, handed to the agent as it is.",
    )
    owner_agent_id = forms.CharField(
        label="Agent",
        required=False,
        max_length=100,
        widget=Suggesting(Agent.objects.values_list("agent_id", flat=True)),
        help_text="Only where this very agent should do it, whatever the rule says.",
    )
    priority = forms.IntegerField(
        initial=0, min_value=MIN_INT, max_value=MAX_INT, help_text="Higher goes first within its type."
    )
    not_before = forms.SplitDateTimeField(
        required=False,
        widget=AdminSplitDateTime,
        help_text=f"Not dispatched before this time ({settings.TIME_ZONE}). Empty: now.",
    )
    max_attempts = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_ATTEMPTS,
        help_text="Hand-outs in all. Empty: the rule's, else the server's setting.",
    )
    # A double click or a reload launches nothing twice.
    once = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)

    def launch(self, actor: Actor) -> Created | None:
        """None: refused; the fields say why."""
        said = {name: value for name, value in self.cleaned_data.items() if name != "once"}
        said["owner_agent_id"] = said["owner_agent_id"] or None
        key = f"admin-{self.cleaned_data['once']}"
        try:
            return lifecycle.create(actor=actor, initiator=actor.id, idempotency_key=key, **said)
        except Invalid as refusal:
            for name, message in (refusal.fields or {"": refusal.detail}).items():
                self.add_error(name if name in self.fields else None, f"{message[:1].upper()}{message[1:]}.")
        except DomainError as refusal:
            self.add_error(None, refusal.detail)
        return None
