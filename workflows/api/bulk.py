"""One verb for many runs, row by row: each run is asked for itself, and one that refuses stops none of the others."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from dispatcher_project.errors import DomainError, Invalid
from governance.actors import Actor
from workflows import lifecycle, states
from workflows.api import twins
from workflows.api.filters import FILTERS, filtered
from workflows.models import WorkflowRun

MAX_RUNS = 1000

Runs = QuerySet[WorkflowRun]


@dataclass(frozen=True, slots=True)
class Done:
    """`matched`: runs of the filter that the action applies to, MAX_RUNS at most; `more`: there are others, repeat the
    call. `refused`: {code: runs} of those that had moved on by then."""

    matched: int
    changed: int
    refused: dict[str, int]
    more: bool


def chosen(said: dict[str, Any]) -> Runs:
    """The runs of a filter as in the list's query: {"status": "queued"} or {"status": ["queued", "paused"]}, ….

    Errors: Invalid: empty, or a field that the list doesn't have; it must not be missed in silence.
    """
    said = twins.merge(said, FILTERS)
    if not said:
        raise Invalid(fields={"filter": f"must not be empty: one of {', '.join(FILTERS)} at least"})
    try:
        return filtered(WorkflowRun.objects.all(), {name: _values(name, value) for name, value in said.items()})
    except Invalid as error:
        raise Invalid(fields={f"filter.{name}": message for name, message in error.fields.items()}) from None


def _values(name: str, value: Any) -> list[str]:
    if name not in FILTERS:
        raise Invalid(fields={name: f"unknown filter; known here: {', '.join(FILTERS)}"})
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, str) for item in values):
        raise Invalid(fields={name: "must be text, or a list of text"})
    return values


def apply(action: str, runs: Runs, *, actor: Actor, reason: str | None) -> Done:
    """`action`: cancel or run-now, of the oldest runs first that it can change."""
    ids = list(_APPLIES[action](runs).order_by("created_at", "id").values_list("pk", flat=True)[: MAX_RUNS + 1])
    refused: Counter[str] = Counter()
    for run_id in ids[:MAX_RUNS]:
        try:
            _do(action, run_id, actor, reason)
        except DomainError as error:
            refused[error.code] += 1
    matched = len(ids[:MAX_RUNS])
    return Done(matched, matched - refused.total(), dict(refused), more=len(ids) > MAX_RUNS)


def _do(action: str, run_id: uuid.UUID, actor: Actor, reason: str | None) -> None:
    if action == "cancel":
        lifecycle.cancel(run_id, actor=actor, reason=reason)
    else:
        lifecycle.run_now(run_id, actor=actor)


_APPLIES: dict[str, Callable[[Runs], Runs]] = {
    "cancel": lambda runs: runs.filter(status__in=states.OPEN),
    "run-now": lambda runs: runs.filter(status=states.QUEUED, not_before__isnull=False),
}
