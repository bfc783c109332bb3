"""What a run's holder reports beside heartbeats: steps, artifacts, gateway sessions; and a session's heartbeat."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
from rest_framework.request import Request
from rest_framework.response import Response

from workflows import lifecycle
from workflows.api import describe, pages, query, run_object, shapes
from workflows.api.twins import Twins
from workflows.api.view import View, actor_of, body_of, run_id_of, session_of, visible_run
from workflows.models import WorkflowArtifact
from workflows.models.rows import Row


class Reports(View):
    parameters: ClassVar = {"artifacts": ("limit", "cursor")}

    @describe.session_heartbeat
    def session_heartbeat(self, request: Request, session_id: str) -> Response:
        """Each run that this session of your agent holds; `directive` says for each what to do."""
        body_of(request)  # nothing in it counts, but it must be JSON as everywhere
        runs = lifecycle.session_heartbeat(session_of(session_id), actor=actor_of(request))
        shown = [run_object.show_beaten(row) for row in run_object.trimmed(runs)]
        return Response(Twins(updated_runs=len(shown), runs=shown))

    @describe.verb(shapes.Step)
    def step(self, request: Request, run_id: str) -> Response:
        """The holder is at this step. The same name again updates its row; an `output` left out stays."""
        said = shapes.Step.read(body_of(request))
        return Response(run_object.show_held(lifecycle.step(run_id_of(run_id), actor=actor_of(request), **said)))

    @describe.add_artifact
    def add_artifact(self, request: Request, run_id: str) -> Response:
        said = shapes.Artifact.read(body_of(request))
        made = lifecycle.artifact(run_id_of(run_id), actor=actor_of(request), **said)
        return Response(_artifact({**made, "metadata": orjson.Fragment(made["metadata"])}), status=201)

    @describe.artifacts
    def artifacts(self, request: Request, run_id: str) -> Response:
        """Oldest first."""
        run = visible_run(run_id, actor_of(request))
        mine = WorkflowArtifact.objects.filter(run_id=run["id"])
        limit = query.limit(self.query, default=query.MAX_LIMIT)
        page = pages.cut(mine, pages.Order(("id",)), request=request, query=self.query, limit=limit)
        shown = [_artifact(found) for found in run_object.artifacts(run["id"], ids=page.items)]
        return Response(Twins(artifacts=shown, next=page.next, previous=page.previous))

    @describe.verb(shapes.GatewaySession)
    def bind_session(self, request: Request, run_id: str) -> Response:
        """Sets the gateway columns only, never the lease. For the holder's agent and operators."""
        return self._bind(request, run_id, active=True)

    @describe.verb(shapes.GatewaySession)
    def unbind_session(self, request: Request, run_id: str) -> Response:
        """Another session than the bound one: nothing changes."""
        return self._bind(request, run_id, active=False)

    def _bind(self, request: Request, run_id: str, *, active: bool) -> Response:
        said = shapes.GatewaySession.read(body_of(request))
        row = lifecycle.bind_session(
            run_id_of(run_id), gateway_session_id=said["session_id"], actor=actor_of(request), active=active
        )
        return Response(run_object.show_held(row))


def _artifact(found: Row) -> dict[str, Any]:
    return Twins({name: found[name] for name in run_object.ARTIFACT})
