"""What the page of a run shows beside its columns: why it waits, what may be done, its timeline and leases."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.conf import settings
from django.urls import reverse

from governance.actors import Actor
from workflows import admission, states
from workflows.admin import looks
from workflows.admin.steering import offers
from workflows.models import RunEvent, RunLease
from workflows.models.rows import Row

SHOWN_EVENTS = 200
WAITING = (states.QUEUED, states.PAUSED, states.WAITING_FOR_APPROVAL)


def run_address(pk: uuid.UUID) -> str:
    return reverse("admin:workflows_workflowrun_change", args=[pk])


def counted(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def run_context(row: Row, who: Actor) -> dict[str, Any]:
    pk, state = row["id"], row["status"]
    waits = state in WAITING
    return {
        "row": row,
        "waits": waits,
        "reasons": admission.explain(row, max_attempts=settings.DISPATCHER_MAX_DISPATCH_RETRIES) if waits else [],
        "offers": offers(state, who),
        "events": timeline(pk),
        "leases": list(RunLease.objects.filter(run_id=pk).order_by("-lease_no")[:SHOWN_EVENTS]),
        "shown_events": SHOWN_EVENTS,
        "title": f"{row['workflow_type']}: {states.LABELS[state].lower()}",
    }


def timeline(pk: uuid.UUID) -> list[RunEvent]:
    """The newest first."""
    events = list(RunEvent.objects.filter(run_id=pk).order_by("-seq")[:SHOWN_EVENTS])
    for event in events:
        event.badge = looks.status(event.to_status)  # type: ignore[attr-defined]
        event.facts = facts(event.detail)  # type: ignore[attr-defined]
    return events


def facts(detail: Any) -> str:
    if isinstance(detail, dict):
        return ", ".join(f"{name} {value}" for name, value in detail.items())
    return "" if detail is None else json.dumps(detail)
