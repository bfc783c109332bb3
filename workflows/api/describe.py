"""What the OpenAPI document says about each endpoint; kept out of the views, which say what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from workflows import states
from workflows.api import query, shapes
from workflows.api.filters import FILTERS

Method = TypeVar("Method", bound=Callable[..., Any])

RUN = OpenApiResponse(OpenApiTypes.OBJECT, description="The run")


def _query(name: str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, location=OpenApiParameter.QUERY, **more)


LIMIT = _query("limit", type=int, description="1 to 100; clamped")
CURSOR = _query("cursor", description="from `next` or `previous`")
PAGE = (LIMIT, CURSOR)
WAIT = _query(
    "wait",
    type={"type": "number", "minimum": 0, "maximum": query.MAX_WAIT},
    description="seconds; the answer comes when there is something new, or at their end",
)


def described(
    *,
    body: type[shapes.Shape] | None = None,
    answer: Any = OpenApiTypes.OBJECT,
    status: int = 200,
    also: dict[int, Any] | None = None,
    **more: Any,
) -> Callable[[Method], Method]:
    """`openapi.py` adds the answer's schema and what may be refused."""
    return extend_schema(request=body, responses={status: answer} | (also or {}), **more)


def verb(body: type[shapes.Shape]) -> Callable[[Method], Method]:
    return described(body=body, answer=RUN)


_STATUS = _query("status", enum=list(states.STATES), many=True, description="repeatable")
create = described(
    body=shapes.Create,
    answer=RUN,
    status=201,
    also={200: OpenApiResponse(OpenApiTypes.OBJECT, description="The run that this Idempotency-Key made before")},
    parameters=[OpenApiParameter("Idempotency-Key", location=OpenApiParameter.HEADER, description="1-200 characters")],
)
list_ = described(
    operation_id="workflow_runs_list",
    parameters=[_STATUS, *(_query(name) for name in FILTERS if name != "status"), *PAGE],
)
pending = described(parameters=[LIMIT, _query("agent_id"), WAIT])
claim_next = described(
    body=shapes.ClaimNext,
    answer=OpenApiResponse(OpenApiTypes.OBJECT, description="The run; {runs: […]} where `limit` is given"),
    also={204: OpenApiResponse(description="No run")},
)
detail = described(
    answer=RUN,
    parameters=[
        WAIT,
        OpenApiParameter(
            "If-None-Match",
            location=OpenApiParameter.HEADER,
            description="the ETag that is known; with `wait`: no wait where the run has moved since",
        ),
    ],
    also={304: OpenApiResponse(description="It is as `If-None-Match` has it")},
)
explain = described()
stats = described()
session_heartbeat = described(body=None)
artifacts = described(parameters=[*PAGE])
add_artifact = described(body=shapes.Artifact, status=201)
IF_MATCH = OpenApiParameter(
    "If-Match", location=OpenApiParameter.HEADER, description="the ETag of the version that is meant"
)
edit = described(body=shapes.Edit, answer=RUN, parameters=[IF_MATCH])
active = described(parameters=[*PAGE])
stuck = described(parameters=[LIMIT])
bulk = described(body=shapes.Bulk)
tokens = described(parameters=[*PAGE])
issue_token = described(body=shapes.Token, status=201)
revoke_token = described()


class BearerToken(OpenApiAuthenticationExtension):
    target_class = "workflows.api.authentication.AgentTokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer"}


class StaffSession(OpenApiAuthenticationExtension):
    target_class = "workflows.api.authentication.StaffSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}


class FromThisMachine(OpenApiAuthenticationExtension):
    target_class = "workflows.api.authentication.AnonymousLoopbackAuthentication"
    name = []  # no scheme: nothing has to be sent

    def get_security_requirement(self, auto_schema: Any) -> Any:
        return {} if settings.API_ANONYMOUS_LOOPBACK else None

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, Any]]:
        return []
