"""/metrics for Prometheus: the figures of the stats endpoint, and how long the daemons' phases take.

Every label has a few values: states, kinds of process, phases. Types and agents are none.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from datetime import datetime

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from dispatcher_project import api_errors, clock
from workflows.api import health, stats
from workflows.models import ProcessInstance
from workflows.models.process import ProcessKind

PREFIX = "workflow_dispatcher"
TROUBLE = {
    "stale_unclaimed_count": ("runs_stale_unclaimed", "Dispatched runs that nobody claimed within the limit"),
    "stale_claimed_count": ("runs_stale_claimed", "Claimed or running runs without a heartbeat within the limit"),
    "route_count": ("routes", "Routing rules"),
    "unroutable_count": ("runs_unroutable", "Due runs that no rule routes and that name no owner"),
}


@csrf_exempt
def metrics(request: HttpRequest) -> HttpResponse:
    """200 in the text format; 401 where METRICS_TOKEN is set and isn't sent as a bearer token."""
    if no := health.refused(request):
        return no
    if not _may_read(request.META.get("HTTP_AUTHORIZATION", "")):
        response = api_errors.respond(401, code="token_invalid", detail="Send Authorization: Bearer <METRICS_TOKEN>.")
        response["WWW-Authenticate"] = "Bearer"
        return response
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def _may_read(header: str) -> bool:
    token: str = settings.METRICS_TOKEN
    scheme, _, given = header.partition(" ")
    is_right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return not token or (scheme.lower() == "bearer" and is_right)


class Figures(Collector):
    """Reads when asked: every web process gives the same answer."""

    def collect(self) -> Iterator[Metric]:
        yield from _of_runs()
        for name, value in stats.trouble().items():
            yield _gauge(*TROUBLE[name], [((), value)])
        yield from _of_processes()


def _of_runs() -> Iterator[Metric]:
    counts = stats.counts()
    yield _gauge("runs", "Runs by state", [((state,), n) for state, n in counts.runs.items()], ["status"])
    yield _gauge("runs_dispatched", "Runs that were ever dispatched", [((), counts.dispatched)])
    yield _gauge("failure_rate", "(failed + timed out) / dispatched", [((), counts.failure_rate)])
    latency = SummaryMetricFamily(f"{PREFIX}_claim_latency_seconds", "From a run's last claimed hand-out to its claim")
    latency.add_metric([], count_value=counts.claims, sum_value=float(counts.claim_seconds))
    yield latency


def _of_processes() -> Iterator[Metric]:
    now = clock.now()
    alive = [
        process for process in ProcessInstance.objects.filter(stopped_at__isnull=True) if stats.heard_from(process, now)
    ]
    kinds = [((kind,), sum(process.kind == kind for process in alive)) for kind in ProcessKind.values]
    yield _gauge("processes", "Processes that were heard from", kinds, ["process"])
    suspended = any((process.recovery_suspended_until or now) > now for process in alive)
    yield _gauge("recovery_suspended", "1: recovery waits after an outage of ours", [((), int(suspended))])
    ticked = [process for process in alive if process.last_tick_at is not None]
    ages = {kind: _age(ticked, kind, now) for kind in ProcessKind.values}
    known = [((kind,), age) for kind, age in ages.items() if age is not None]
    yield _gauge("last_tick_age_seconds", "Since the last recorded tick", known, ["process"])
    failing = [((kind,), sum(bool(p.last_tick_error) for p in ticked if p.kind == kind)) for kind in ages]
    yield _gauge("ticks_failing", "Processes whose last tick met an error", failing, ["process"])
    yield _gauge(
        "phase_seconds",
        "How long a phase took the last time, the slowest process",
        _phases(ticked),
        ["process", "phase"],
    )


def _age(ticked: list[ProcessInstance], kind: str, now: datetime) -> float | None:
    moments = [process.last_tick_at for process in ticked if process.kind == kind and process.last_tick_at]
    return max(0.0, (now - max(moments)).total_seconds()) if moments else None


def _phases(ticked: list[ProcessInstance]) -> list[tuple[tuple[str, ...], float]]:
    slowest: dict[tuple[str, ...], float] = {}
    for process in ticked:
        for phase, seconds in (process.last_tick_summary or {}).get("phase_seconds", {}).items():
            labels = (process.kind, phase)
            slowest[labels] = max(slowest.get(labels, 0.0), float(seconds))
    return sorted(slowest.items())


def _gauge(
    name: str, text: str, values: Iterable[tuple[tuple[str, ...], float]], labels: Iterable[str] = ()
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels))
    for given, value in values:
        gauge.add_metric(list(given), value)
    return gauge
