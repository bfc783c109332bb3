"""What operators do with runs beside the verbs of one: edits, run-now, what is in flight, what is stuck, bulk."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from dispatcher_project.errors import Refused
from governance.rules import may_configure
from workflows import lifecycle
from workflows.api import bulk, describe, pages, query, run_object, shapes, stuck, tags
from workflows.api.filters import visible_to
from workflows.api.twins import Twins
from workflows.api.view import View, actor_of, body_of, run_id_of
from workflows.models import rows

NEWEST_FIRST = pages.Order(("created_at", "id"), descending=True)


class Steering(View):
    parameters: ClassVar = {"active": ("limit", "cursor"), "stuck": ("limit",)}

    @describe.edit
    def edit(self, request: Request, run_id: str) -> Response:
        """Priority and `not_before` only while it is queued. Null clears what may be empty."""
        changes = shapes.Edit.read(body_of(request))
        row = lifecycle.edit(
            run_id_of(run_id),
            changes,
            actor=actor_of(request),
            is_current=lambda row: tags.is_expected(request, row),
        )
        return Response(run_object.show_held(row), headers={"ETag": tags.of_run(row)})

    @describe.verb(shapes.Cancel)
    def run_now(self, request: Request, run_id: str) -> Response:
        """Clears `not_before` and back-off of a queued run; never a limit."""
        shapes.Cancel.read(body_of(request))
        return Response(run_object.show_held(lifecycle.run_now(run_id_of(run_id), actor=actor_of(request))))

    @describe.active
    def active(self, request: Request) -> Response:
        """In flight: dispatched, claimed, running, or paused under a lease. Newest first."""
        runs = visible_to(actor_of(request)).holding_slots()
        limit = query.limit(self.query, default=50)
        page = pages.cut(runs, NEWEST_FIRST, request=request, query=self.query, limit=limit)
        shown = run_object.show_listed(rows.by_ids(page.items, trimmed=True))
        return Response(Twins(runs=shown, next=page.next, previous=page.previous))

    @describe.stuck
    def stuck(self, request: Request) -> Response:
        found = stuck.find(visible_to(actor_of(request)), query.limit(self.query, default=50))
        return Response(Twins(runs=found.runs, more=found.more))

    @describe.bulk
    def bulk(self, request: Request) -> Response:
        actor = actor_of(request)
        if not may_configure(actor):
            raise Refused("This needs an operator.")
        said = shapes.Bulk.read(body_of(request))
        done = bulk.apply(said["action"], bulk.chosen(said["filter"]), actor=actor, reason=said.get("reason"))
        return Response(Twins(matched=done.matched, changed=done.changed, refused=done.refused, more=done.more))
