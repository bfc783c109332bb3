"""/health/live and /health/ready, without credentials. Not DRF: they must answer when little else does."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from dispatcher_project import api_errors, clock
from workflows.api import stats
from workflows.api.renderers import dumps
from workflows.models import ProcessInstance
from workflows.models.process import ProcessKind

Check = dict[str, Any]
SAFE = ("GET", "HEAD")

_migrated = False  # what is applied stays applied: asked until the answer is yes


@csrf_exempt
def live(request: HttpRequest) -> HttpResponse:
    """The process answers. `asgi.py` says the same without a thread."""
    return refused(request) or HttpResponse(dumps({"status": "ok"}), content_type="application/json")


@csrf_exempt
def ready(request: HttpRequest) -> HttpResponse:
    """200 or 503, each with `checks`: database reachable, migrations applied, a dispatcher heard from."""
    if no := refused(request):
        return no
    checks = _checks()
    if all(check["ok"] for check in checks.values()):
        return HttpResponse(dumps({"status": "ok", "checks": checks}), content_type="application/json")
    wrong = "; ".join(f"{name}: {check['detail']}" for name, check in checks.items() if not check["ok"])
    return api_errors.respond(503, code="not_ready", detail=wrong, checks=checks)


def refused(request: HttpRequest) -> HttpResponse | None:
    """The answer to a method that only looks."""
    if request.method in SAFE:
        return None
    response = api_errors.respond(405, code="method_not_allowed", detail=f"Method {request.method} is not allowed.")
    response.headers["Allow"] = ", ".join(SAFE)
    return response


def _checks() -> dict[str, Check]:
    checks = {
        name: _no(f"not looked at: {name} needs the database") for name in ("database", "migrations", "dispatcher")
    }
    try:
        now = clock.now()
        checks["database"] = _yes("reachable")
        checks["migrations"] = _migrations()
        if checks["migrations"]["ok"]:
            checks["dispatcher"] = _dispatcher(now)
    except DatabaseError as error:
        first = str(error).strip().splitlines()[:1]
        checks["database"] = _no(first[0][:200] if first else type(error).__name__)
    return checks


def _migrations() -> Check:
    global _migrated
    if not _migrated:
        executor = MigrationExecutor(connection)
        missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
        if missing:
            return _no(f"{missing} to apply: run `manage.py migrate`")
        _migrated = True
    return _yes("applied")


def _dispatcher(now: Any) -> Check:
    alive = ProcessInstance.objects.filter(kind=ProcessKind.DISPATCHER, stopped_at__isnull=True)
    newest = alive.order_by("-last_seen_at").first()
    if newest is None:
        return _no("none is running: `manage.py run_dispatcher`")
    if not stats.heard_from(newest, now):
        return _no(f"last heard from at {newest.last_seen_at.isoformat()}")
    return _yes(f"{newest.host}:{newest.pid}")


def _yes(detail: str) -> Check:
    return {"ok": True, "detail": detail}


def _no(detail: str) -> Check:
    return {"ok": False, "detail": detail}
