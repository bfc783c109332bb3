"""The dispatcher's figures, and readiness."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher_project import clock
from tests.factories import ProcessInstanceFactory, make_run
from tests.workflows.api.test_conventions import problem
from workflows import states
from workflows.api import health

PATH = "workflow-runs/dispatcher/stats"
KEYS = [
    "queued_count",
    "pending_count",
    "claimed_count",
    "running_count",
    "paused_count",
    "completed_count",
    "failed_count",
    "timed_out_count",
    "cancelled_count",
    "stale_unclaimed_count",
    "stale_claimed_count",
    "dispatch_count",
    "average_claim_latency_seconds",
    "failure_rate",
    "route_count",
    "unroutable_count",
    "recovery_suspended",
    "poll_interval_ms",
    "stale_dispatch_ms",
    "stale_claim_ms",
    "max_dispatch_retries",
    "last_tick_at",
    "last_tick_error",
    "last_tick_summary",
    "dispatchers",
]


def test_an_empty_server(api):
    figures = api("a1").get(PATH).json()
    assert set(KEYS) <= set(figures)
    assert (figures["failure_rate"], figures["average_claim_latency_seconds"], figures["dispatchers"]) == (0, None, [])


def test_counts(ops):
    for n, state in enumerate(states.STATES):
        for _ in range(n + 1):
            make_run(state)
    figures = ops.get(PATH).json()
    for n, state in enumerate(states.STATES):
        assert figures[f"{'pending' if state == 'dispatched' else state}_count"] == n + 1
    assert figures["dispatch_count"] == sum(range(2, 10))  # all but the queued ones and the cancelled
    assert figures["failure_rate"] == pytest.approx((8 + 9) / figures["dispatch_count"], abs=1e-6)
    assert (figures["route_count"], figures["unroutable_count"], figures["stale_claimed_count"]) == (1, 0, 0)


def test_trouble(ops, settings):
    long_ago = clock.now() - timedelta(days=1)
    make_run("dispatched", now=long_ago)
    make_run("running", now=long_ago)
    make_run("queued", workflow_type="nobody")
    make_run("queued", workflow_type="nobody", owner_agent_id="a1")
    make_run("completed", dispatched_at=long_ago, claimed_at=long_ago + timedelta(seconds=4))
    figures = ops.get(PATH).json()
    assert (figures["stale_unclaimed_count"], figures["stale_claimed_count"], figures["unroutable_count"]) == (1, 1, 1)
    assert figures["average_claim_latency_seconds"] == 2  # of 0 s and 4 s


def test_dispatchers(ops):
    now = clock.now()
    summary = {"dispatched_count": 3, "budget_enforcement": {"held": 1}}
    ProcessInstanceFactory(
        started_at=now,
        last_tick_at=now,
        last_tick_summary=summary,
        recovery_suspended_until=now + timedelta(minutes=1),
    )
    ProcessInstanceFactory(started_at=now - timedelta(hours=1))  # silent
    ProcessInstanceFactory(started_at=now, stopped_at=now)
    figures = ops.get(PATH).json()
    assert len(figures["dispatchers"]) == 1
    assert figures["recoverySuspended"] is True
    assert figures["last_tick_summary"]["dispatched_count"] == 3
    assert figures["lastTickSummary"]["budgetEnforcement"] == {"held": 1, "stopped": 0, "warned": 0}
    assert figures["lastTickSummary"]["timedOutCount"] == 0
    assert figures["last_tick_at"] == figures["lastTickAt"] == now.isoformat(timespec="microseconds")[:-6] + "Z"


def test_in_a_handful_of_statements(ops, django_assert_max_num_queries):
    make_run("queued")
    ops.get(PATH)
    with django_assert_max_num_queries(9):
        ops.get(PATH)


class TestReady:
    @pytest.fixture(autouse=True)
    def unknown(self, monkeypatch):
        monkeypatch.setattr(health, "_migrated", False)

    def test_needs_a_dispatcher(self, client, db):
        body = problem(client.get("/health/ready"), 503, "not_ready")
        assert {name: check["ok"] for name, check in body["checks"].items()} == {
            "database": True,
            "migrations": True,
            "dispatcher": False,
        }
        ProcessInstanceFactory(started_at=clock.now() - timedelta(hours=1))
        problem(client.get("/health/ready"), 503, "not_ready")
        ProcessInstanceFactory(kind="monitor")
        problem(client.get("/health/ready"), 503, "not_ready")
        ProcessInstanceFactory()
        answer = client.get("/health/ready")
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")

    def test_needs_the_migrations(self, client, db, monkeypatch):
        monkeypatch.setattr("django.db.migrations.executor.MigrationExecutor.migration_plan", lambda *_: [1, 2])
        assert "migrate" in problem(client.get("/health/ready"), 503, "not_ready")["detail"]

    def test_needs_the_database(self, client, monkeypatch):
        from django.db import OperationalError

        def gone():
            raise OperationalError("connection refused\nwith more lines")

        monkeypatch.setattr("dispatcher_project.clock.now", gone)
        body = problem(client.get("/health/ready"), 503, "not_ready")
        assert body["checks"]["database"] == {"ok": False, "detail": "connection refused"}

    def test_live_needs_nothing(self, client):
        assert client.get("/health/live").json() == {"status": "ok"}  # without the db fixture: no statement


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
@pytest.mark.parametrize("method", ["post", "put", "delete", "options"])
def test_health_is_only_looked_at(client, path, method):
    answer = getattr(client, method)(path)
    assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")
    assert answer["Content-Type"] == "application/problem+json"
