"""/api/workflow-runs: create, read, and the verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from django.conf import settings
from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from budgets.usage import UsageReport
from dispatcher_project.errors import Invalid, Refused
from governance.actors import Actor
from governance.rules import sees_everything
from workflows import admission, lifecycle, states
from workflows.api import bells, describe, outcome, pages, query, run_object, shapes, stats, tags
from workflows.api.filters import FILTERS, filtered, visible_to
from workflows.api.long_polls import hold
from workflows.api.operator_views import NEWEST_FIRST, Steering
from workflows.api.twins import Twins
from workflows.api.view import actor_of, body_of, run_id_of, visible_run
from workflows.lifecycle import fence
from workflows.models import rows
from workflows.models.rows import Row

OLDEST_DISPATCHED_FIRST = pages.Order(("dispatched_at", "id"))
PENDING = """run.id = ANY(ARRAY(
    SELECT waiting.id FROM workflow_runs waiting
    LEFT JOIN workflow_agent_routing route ON route.workflow_type = waiting.workflow_type
    WHERE waiting.status = 'dispatched' AND (%(agent_id)s::text IS NULL OR waiting.target_agent_id = %(agent_id)s)
    ORDER BY COALESCE(route.priority, 0) DESC, waiting.priority DESC, waiting.dispatched_at, waiting.created_at,
        waiting.id
    LIMIT %(limit)s
)) AND run.status = 'dispatched'
ORDER BY COALESCE(rule.priority, 0) DESC, run.priority DESC, run.dispatched_at, run.created_at, run.id"""


class Runs(Steering):
    parameters: ClassVar = {
        "list": (*FILTERS, "limit", "cursor"),
        "pending": ("limit", "agent_id", "wait"),
        "retrieve": ("wait",),
    }

    @describe.create
    def create(self, request: Request) -> Response:
        said = shapes.Create.read(body_of(request))
        retries = said.pop("max_retries", None)
        made = lifecycle.create(
            said.pop("workflow_type"),
            actor=actor_of(request),
            max_attempts=None if retries is None else retries + 1,
            idempotency_key=_idempotency_key(request),
            **said,
        )
        address = reverse("run", args=[made.run["id"]])
        return Response(
            run_object.show_held(made.run), status=201 if made.is_new else 200, headers={"Location": address}
        )

    @describe.list_
    def list(self, request: Request) -> Response:
        runs = filtered(visible_to(actor_of(request)), self.query)
        order = NEWEST_FIRST
        if set(self.query.get("status", ())) == {states.DISPATCHED}:
            order = OLDEST_DISPATCHED_FIRST
        page = pages.cut(runs, order, request=request, query=self.query, limit=query.limit(self.query, default=50))
        shown = run_object.show_listed(rows.by_ids(page.items, trimmed=True))
        return Response(Twins(runs=shown, next=page.next, previous=page.previous))

    @describe.pending
    def pending(self, request: Request) -> Response:
        agent_id = _whose(actor_of(request), query.text(self.query, "agent_id"))
        limit = query.limit(self.query, default=10)
        wait = query.wait(self.query)
        found = rows.select(PENDING, {"agent_id": agent_id, "limit": limit}, trimmed=True)
        if not found:
            hold(request, wait, keys=_bells_of(agent_id), kind=("pending", agent_id))
        return Response(Twins(runs=run_object.show_listed(found)))

    @describe.claim_next
    def claim_next(self, request: Request) -> Response:
        said = shapes.ClaimNext.read(body_of(request))
        wait, actor = said.pop("wait", 0.0), actor_of(request)
        agent_id = _whose(actor, said.pop("agent_id", None))
        claimed = lifecycle.claim_next(actor=actor, agent_id=agent_id, **said)
        if not claimed:
            hold(request, wait, keys=_bells_of(agent_id), kind=_kind(actor, agent_id, said.get("workflow_types")))
        shown = [run_object.show_held(row) for row in claimed]
        if "limit" in said:
            return Response(Twins(runs=shown)) if shown else Response(status=204)
        return Response(shown[0]) if shown else Response(status=204)

    @describe.detail
    def retrieve(self, request: Request, run_id: str) -> Response:
        wait = query.wait(self.query)
        row = visible_run(run_id, actor_of(request))
        if not states.is_final(row["status"]) and _is_where_it_was(row, request.META.get("HTTP_IF_NONE_MATCH")):
            hold(request, wait, keys=[f"run:{row['id']}"], seen=row["last_seq"])
        return tags.respond(request, row)

    @describe.explain
    def explain(self, request: Request, run_id: str) -> Response:
        row = visible_run(run_id, actor_of(request))
        reasons = admission.explain(row, max_attempts=settings.DISPATCHER_MAX_DISPATCH_RETRIES)
        return Response({"dispatchable": not reasons, "reasons": [reason.as_dict() for reason in reasons]})

    @describe.verb(shapes.Claim)
    def claim(self, request: Request, run_id: str) -> Response:
        said = shapes.Claim.read(body_of(request))
        return Response(run_object.show_held(lifecycle.claim(run_id_of(run_id), actor=actor_of(request), **said)))

    @describe.verb(shapes.Start)
    def start(self, request: Request, run_id: str) -> Response:
        said = shapes.Start.read(body_of(request))
        return Response(run_object.show_held(lifecycle.start(run_id_of(run_id), actor=actor_of(request), **said)))

    @describe.verb(shapes.Heartbeat)
    def heartbeat(self, request: Request, run_id: str) -> Response:
        said = shapes.Heartbeat.read(body_of(request))
        usage = said.pop("usage", [])
        row = lifecycle.heartbeat(run_id_of(run_id), actor=actor_of(request), **said.pop("progress", {}), **said)
        return Response(_beaten(row, usage))

    @describe.verb(shapes.Complete)
    def complete(self, request: Request, run_id: str) -> Response:
        said = shapes.Complete.read(body_of(request))
        output = outcome.output(body_of(request), said)
        error = outcome.failure(said, output)
        lease: dict[str, Any] = {name: said.get(name) for name in ("session_id", "lease_no")}
        lease["actor"] = actor_of(request)
        extra = _usage_said(said["usage"])
        if error is None:
            row = lifecycle.complete(run_id_of(run_id), output_summary=output, body=extra, **lease)
        else:
            row = lifecycle.fail(run_id_of(run_id), error=error, output_summary=output or None, body=extra, **lease)
        return Response(_ended(row, said["usage"]))

    @describe.verb(shapes.Fail)
    def fail(self, request: Request, run_id: str) -> Response:
        said = shapes.Fail.read(body_of(request))
        usage = said.pop("usage", [])
        row = lifecycle.fail(run_id_of(run_id), actor=actor_of(request), body=_usage_said(usage), **said)
        return Response(_ended(row, usage))

    @describe.verb(shapes.Release)
    def release(self, request: Request, run_id: str) -> Response:
        said = shapes.Release.read(body_of(request))
        return Response(run_object.show_held(lifecycle.release(run_id_of(run_id), actor=actor_of(request), **said)))

    @describe.verb(shapes.Cancel)
    def cancel(self, request: Request, run_id: str) -> Response:
        said = shapes.Cancel.read(body_of(request))
        reason = said.get("reason") or said.get("note")
        return Response(
            run_object.show_held(lifecycle.cancel(run_id_of(run_id), actor=actor_of(request), reason=reason))
        )

    @describe.stats
    def stats(self, request: Request) -> Response:
        return Response(stats.read())


def _idempotency_key(request: Request) -> str | None:
    key: str | None = request.META.get("HTTP_IDEMPOTENCY_KEY")
    if key is not None and (not 1 <= len(key) <= 200 or not key.isprintable()):
        raise Invalid(fields={"Idempotency-Key": "must be 1 to 200 printable characters"})
    return key


def _whose(actor: Actor, agent_id: str | None) -> str | None:
    """Whose dispatched runs are meant; None: everybody's."""
    if sees_everything(actor):
        return agent_id
    if agent_id not in (None, actor.id):
        raise Refused(f"You are agent {actor.id!r}; only an operator or orchestrator may ask for {agent_id!r}'s.")
    return actor.id


def _bells_of(agent_id: str | None) -> list[str]:
    return [bells.ANY if agent_id is None else f"pending:{agent_id}"]


def _kind(actor: Actor, agent_id: str | None, types: Sequence[str] | None) -> tuple[Any, ...]:
    """Sessions for which claim-next looks through the same runs."""
    return ("claim", fence.own(actor), agent_id, None if types is None else frozenset(types))


def _is_where_it_was(row: Row, tags: str | None) -> bool:
    """Whether the caller knows of every move (`If-None-Match`), or waits for the next one. Heartbeats are no news."""
    if tags is None:
        return True
    return any(tag.strip().removeprefix("W/").startswith(f'"{row["last_seq"]}-') for tag in tags.split(","))


def _beaten(row: Row, usage: list[UsageReport]) -> Twins:
    return _with_usage(run_object.show_beaten(row), usage)


def _ended(row: Row, usage: list[UsageReport]) -> Twins:
    shown = run_object.show_held(row)
    return _with_usage(shown, usage) if usage else shown


def _with_usage(shown: Twins, usage: list[UsageReport]) -> Twins:
    """Usage is checked, and booked by nobody: the answer says so."""
    shown["usage_recorded"] = False
    if usage:
        shown["usage_code"] = "metering_unavailable"
    return shown


def _usage_said(usage: list[UsageReport]) -> dict[str, Any]:
    """For the digest that tells a repeated call from another one."""
    return {"usage": [asdict(report) for report in usage]} if usage else {}
