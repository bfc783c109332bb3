"""DomainError and DRF's own exceptions -> `application/problem+json` (RFC 9457), in one place.

{"type", "title", "status", "detail", "code", "error"} always; `errors` [{"field", "message"}] for invalid input; the
error's facts beside them (`run`, `directive`, …).
"""

from __future__ import annotations

import logging
import sys
from http import HTTPStatus
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response

from dispatcher_project.errors import Conflict, DomainError, Invalid, NotFound, PreconditionFailed, Refused

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
# A 503 is an answer, and says itself what is away: no line for each caller.
logging.getLogger("django.request").addFilter(lambda record: getattr(record, "status_code", None) != 503)
DATABASE_GONE = (OperationalError, InterfaceError)
DATABASE_GONE_DETAIL = "The database can't be reached at the moment; try again."
FAMILIES: tuple[tuple[type[DomainError], int], ...] = (
    (NotFound, 404),
    (Invalid, 400),
    (Refused, 403),
    (Conflict, 409),
    (PreconditionFailed, 412),
)


def problem(status: int, *, code: str, detail: str, **facts: Any) -> dict[str, Any]:
    """The body of an error."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "error": detail,
        **facts,
    }


def respond(status: int, *, code: str, detail: str, **facts: Any) -> HttpResponse:
    """The same outside DRF: unknown routes, middleware, plain views."""
    body = orjson.dumps(problem(status, code=code, detail=detail, **facts))
    return HttpResponse(body, status=status, content_type=CONTENT_TYPE)


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. None (a bug) lets the error reach the log and `server_error`."""
    if isinstance(error, DomainError):
        return _domain(error)
    if isinstance(error, DATABASE_GONE):
        log.warning("Database unavailable: %s", _first_line(error))
        gone = problem(503, code="database_unavailable", detail=DATABASE_GONE_DETAIL)
        return _response(gone, {"Retry-After": str(RETRY_AFTER_SECONDS)})
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if isinstance(error, exceptions.APIException):
        return _framework(error)
    return None


def _domain(error: DomainError) -> Response:
    status = next(status for family, status in FAMILIES if isinstance(error, family))
    facts = dict(error.facts)
    if isinstance(error, Invalid) and error.fields:
        facts["errors"] = [{"field": field, "message": message} for field, message in error.fields.items()]
    return _response(problem(status, code=error.code, detail=error.detail, **facts))


def _framework(error: exceptions.APIException) -> Response:
    headers: dict[str, str] = {}
    facts: dict[str, Any] = {}
    code = str(error.default_code)
    detail = error.detail
    if isinstance(error, exceptions.ValidationError):
        code = "invalid"
        facts["errors"] = list(_field_errors(error.detail))
        text = "; ".join(f"{e['field']}: {e['message']}" if e["field"] else e["message"] for e in facts["errors"])
    else:
        text = str(detail)
        code = "forbidden" if isinstance(error, exceptions.PermissionDenied) else getattr(detail, "code", code)
        if errors := getattr(error, "errors", None):
            facts["errors"] = errors
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        headers["WWW-Authenticate"] = getattr(error, "auth_header", "Bearer")
    if (wait := getattr(error, "wait", None)) is not None:  # Throttled
        headers["Retry-After"] = str(int(wait) + 1)
    return _response(problem(error.status_code, code=code, detail=text, **facts), headers)


def _field_errors(detail: Any, path: str = "") -> Any:
    if isinstance(detail, dict):
        for key, value in detail.items():
            name = "" if key == "non_field_errors" else str(key)
            yield from _field_errors(value, f"{path}.{name}" if path and name else path or name)
    elif isinstance(detail, list):
        for value in detail:
            yield from _field_errors(value, path)
    else:
        yield {"field": path, "message": str(detail)}


def _response(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    response = Response(body, status=body["status"], headers=headers)
    response.content_type = CONTENT_TYPE
    return response


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# --- Django's own handlers, for what never reaches DRF (wired in urls.py). Pages for people stay pages ----------------


def _for_programs(request: HttpRequest) -> bool:
    return request.path.startswith(("/api", "/health", "/metrics"))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if not _for_programs(request):
        return defaults.bad_request(request, exception)
    if isinstance(exception, RequestDataTooBig):
        return respond(413, code="too_large", detail="The body is too large.")
    return respond(400, code="bad_request", detail="The request could not be understood.")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if not _for_programs(request):
        return defaults.permission_denied(request, exception)
    return respond(403, code="forbidden", detail="You may not do this.")


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if not _for_programs(request):
        return defaults.page_not_found(request, exception)
    return respond(404, code="not_found", detail=f"There is nothing at {request.path[:200]}.")


def server_error(request: HttpRequest) -> HttpResponseBase:
    if isinstance(sys.exc_info()[1], DATABASE_GONE):
        response = respond(503, code="database_unavailable", detail=DATABASE_GONE_DETAIL)
        response["Retry-After"] = str(RETRY_AFTER_SECONDS)
        return response
    if not _for_programs(request):
        return defaults.server_error(request)
    return respond(500, code="server_error", detail="The server failed; its log has the reason.")
