"""Runs that need somebody's attention, and why.

Each kind of trouble is one bounded query that an index serves; the reasons are then read off the rows found. A run with
several reasons is listed once with all of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count, QuerySet

from dispatcher_project import clock
from workflows import admission, states
from workflows.api import run_object, unroutable
from workflows.api.twins import Twins
from workflows.models import RunLease, WorkflowRun, rows
from workflows.models.rows import Row
from workflows.models.run import RunQuerySet

HELD_TOO_LONG = timedelta(days=1)
GIVEN_BACK = 3


@dataclass(frozen=True, slots=True)
class Found:
    """`more`: not all fitted."""

    runs: list[Twins]
    more: bool


def find(visible: RunQuerySet, limit: int) -> Found:
    """Up to `limit` of these runs with their `reasons` [{"code", "detail"}], the oldest first.

    silent (nothing heard for half the stale limit), overdue, no_route, attempts_nearly_used_up (the last hand-out is
    out or comes next), given_back (three times or more), held (for longer than a day).
    """
    now = clock.now()
    ids = {pk for some in _candidates(visible, now) for pk in some.values_list("pk", flat=True)[: limit + 1]}
    found = sorted(rows.by_ids(list(ids), trimmed=True), key=lambda row: (row["created_at"], row["id"]))
    holds, returns = admission.hold_reasons(found), given_back(found)
    shown = []
    for row in found:
        reasons = list(_reasons(row, now, holds[row["id"]], returns.get(row["id"], 0)))
        if reasons:
            run = run_object.show(row, hold_reason=holds[row["id"]])
            run["reasons"] = [Twins(code=code, detail=detail) for code, detail in reasons]
            shown.append(run)
    return Found(shown[:limit], more=len(shown) > limit)


def _candidates(visible: RunQuerySet, now: datetime) -> Iterator[QuerySet[WorkflowRun]]:
    yield visible.silent_since(now - _patience())
    yield visible.overdue(now)
    yield visible.unowned(unroutable.types())
    yield visible.on_last_attempt(settings.DISPATCHER_MAX_DISPATCH_RETRIES)
    yield visible.given_back(GIVEN_BACK)
    yield visible.waiting_since(now - HELD_TOO_LONG)
    yield visible.stopped_since(now - HELD_TOO_LONG)


def given_back(found: Sequence[Row]) -> Mapping[uuid.UUID, int]:
    """{run: how many of its leases ended by a release}, of those where it may matter."""
    often = [row["id"] for row in found if row["lease_no"] >= GIVEN_BACK]
    releases = RunLease.objects.filter(run_id__in=often, end_verb="release").order_by().values_list("run_id")
    return dict(releases.annotate(count=Count("lease_no"))) if often else {}


def _reasons(row: Row, now: datetime, hold: str | None, returns: int) -> Iterator[tuple[str, str]]:
    if row["status"] in states.LEASED:
        heard = row["last_heartbeat_at"] or row["claimed_at"]
        if heard < now - _patience():
            yield "silent", f"Nothing was heard from {row['claimed_by']!r} for {_age(now - heard)}."
        if row["deadline_at"] < now:
            yield "overdue", f"Its time was up {_age(now - row['deadline_at'])} ago."
    if hold == "no_route":
        yield "no_route", f"No rule routes {row['workflow_type']!r}, and the run names no owner."
    attempts, limit = row["dispatch_attempts"], _attempts(row)
    if attempts >= max(2, limit - 1):
        yield "attempts_nearly_used_up", f"{attempts} of {limit} attempts were made."
    if returns >= GIVEN_BACK:
        yield "given_back", f"It was given back {returns} times."
    since = row["queued_at"] if row["status"] == states.QUEUED else row["updated_at"]
    if hold is not None and row["not_before"] is None and since < now - HELD_TOO_LONG:
        yield "held", f"Held for {_age(now - since)}: {hold.replace('_', ' ')}."


def _attempts(row: Row) -> int:
    return int(row["max_attempts"] or row["rule_max_attempts"] or settings.DISPATCHER_MAX_DISPATCH_RETRIES)


def _patience() -> timedelta:
    return timedelta(milliseconds=settings.DISPATCHER_STALE_CLAIM_MS / 2)


def _age(span: timedelta) -> str:
    minutes = int(span.total_seconds() // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"
