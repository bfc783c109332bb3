"""The conventions that every endpoint shares: known query parameters only, errors that show runs as runs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from dispatcher_project.errors import DomainError, Invalid, NotFound
from governance.actors import Actor
from workflows.api import query, run_object
from workflows.api.shapes import MAX_SESSION
from workflows.errors import RunNotFound
from workflows.lifecycle import fence
from workflows.models.rows import Row

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class View(ViewSet):
    """`parameters`: {action: the query parameters that it takes}; any other is refused."""

    parameters: ClassVar[Mapping[str, Collection[str]]] = {}
    query: query.Query

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.query = query.read(request.META.get("QUERY_STRING", ""), self.parameters.get(self.action or "", ()))

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, DomainError) and "key_space" in (exc.facts.get("run") or {}):
            exc.facts["run"] = run_object.show_held(exc.facts["run"])
        return super().handle_exception(exc)


def actor_of(request: Request) -> Actor:
    actor = request.user
    assert isinstance(actor, Actor)  # noqa: S101  (for the type checker: the permission looked)
    return actor


def run_id_of(text: str) -> uuid.UUID:
    """Errors: RunNotFound: what is no id names no run."""
    if not _RUN_ID.fullmatch(text):
        raise RunNotFound(f"There is no run {text[:100]!r}.")
    return uuid.UUID(text)


def visible_run(run_id: str, actor: Actor) -> Row:
    """Errors: RunNotFound, also for a run that the actor may not see."""
    row = fence.find(run_id_of(run_id))
    if not fence.is_visible(row, actor):
        raise RunNotFound(f"There is no run {row['id']}.")
    return row


def session_of(text: str) -> str:
    """A session in the path. Errors: Invalid."""
    if "\x00" in text or len(text) > MAX_SESSION:
        raise Invalid(fields={"session_id": f"must be 1 to {MAX_SESSION} characters without NUL"})
    return text


def name_of(text: str, what: str) -> str:
    """A name in the path that a column can hold. Errors: NotFound."""
    if "\x00" in text or len(text) > query.MAX_NAME:
        raise NotFound(f"There is no {what} {text[:100]!r}.")
    return text


def body_of(request: Request) -> dict[str, Any]:
    body = request.data
    assert isinstance(body, dict)  # noqa: S101  (the parser refuses all else)
    return body
