"""/metrics says what the stats say."""

from __future__ import annotations

from datetime import timedelta

from django.db import OperationalError
from prometheus_client.parser import text_string_to_metric_families

from dispatcher_project import clock
from tests.factories import ProcessInstanceFactory, make_run
from tests.workflows.api.test_conventions import problem
from workflows import states
from workflows.dispatcher.fold import fold
from workflows.dispatcher.tick import JOB, PHASES
from workflows.models import ProcessInstance
from workflows.ticking import Pass, once

PREFIX = "workflow_dispatcher_"


def read(client, **headers):
    answer = client.get("/metrics", headers=headers)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    samples = [one for family in text_string_to_metric_families(answer.content.decode()) for one in family.samples]
    assert all(one.name.startswith(PREFIX) for one in samples)
    return {(one.name.removeprefix(PREFIX), *one.labels.values()): one.value for one in samples}


def test_the_stats_figures(client, ops):
    now = clock.now()
    for n, state in enumerate(states.STATES):
        for _ in range(n + 1):
            make_run(state)
    make_run("completed", dispatched_at=now, claimed_at=now + timedelta(seconds=3))
    make_run("queued", workflow_type="nobody")
    make_run("running", now=now - timedelta(days=1))
    fold(Pass())
    figures = ops.get("workflow-runs/dispatcher/stats").json()
    found = read(client)
    for state in states.STATES:
        name = "pending" if state == "dispatched" else state
        assert found["runs", state] == figures[f"{name}_count"]
    assert found["runs_dispatched",] == figures["dispatch_count"]
    assert found["failure_rate",] == figures["failure_rate"]
    latency = found["claim_latency_seconds_sum",] / found["claim_latency_seconds_count",]
    assert round(latency, 6) == figures["average_claim_latency_seconds"] > 0
    assert (found["routes",], found["runs_unroutable",], found["runs_stale_claimed",]) == (1, 1, 1)


def test_the_daemons_phases(client, db):
    once(JOB, batch=10)
    ProcessInstanceFactory(kind="monitor", last_tick_at=clock.now(), last_tick_error="overdue: no")
    ProcessInstanceFactory(kind="web", started_at=clock.now() - timedelta(hours=1))
    assert read(client)["processes", "dispatcher"] == 0  # a single pass is over
    now = clock.now()
    for seconds in (0.5, 0.25):
        summary = {"phase_seconds": {name: seconds for name, _ in PHASES}}
        ProcessInstanceFactory(last_tick_at=now, last_tick_summary=summary)
    found = read(client)
    assert [found["processes", kind] for kind in ("dispatcher", "monitor", "web")] == [2, 1, 0]
    assert {found["phase_seconds", name, "dispatcher"] for name, _ in PHASES} == {0.5}
    assert 0 <= found["last_tick_age_seconds", "dispatcher"] < 10
    assert (found["ticks_failing", "monitor"], found["ticks_failing", "dispatcher"]) == (1, 0)
    assert found["recovery_suspended",] == 0


def test_a_pass_records_how_long_its_phases_took(db):
    once(JOB, batch=10)
    seconds = ProcessInstance.objects.get().last_tick_summary["phase_seconds"]
    assert set(seconds) == {name for name, _ in PHASES}
    assert all(0 <= taken < 10 for taken in seconds.values())


def test_the_token(client, db, settings):
    settings.METRICS_TOKEN = "tokén"
    for header in ("", "Bearer", "Bearer wrong", "Basic tokén", "tokén"):
        answer = client.get("/metrics", headers={"Authorization": header})
        problem(answer, 401, "token_invalid")
        assert answer["WWW-Authenticate"] == "Bearer"
    assert read(client, Authorization="bearer tokén")


def test_other_methods_and_an_absent_database(client, db, monkeypatch):
    problem(client.post("/metrics"), 405, "method_not_allowed")

    def gone():
        raise OperationalError("away")

    monkeypatch.setattr("workflows.api.stats.counts", gone)
    client.raise_request_exception = False
    problem(client.get("/metrics"), 503, "database_unavailable")
