"""The hot statements on a table with a long history: an index takes each to the few rows that it is about."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from dispatcher_project import clock
from governance.actors import DISPATCHER
from tests.factories import AgentFactory, RoutingRuleFactory, make_run
from workflows import admission
from workflows.api import stats, stuck, unroutable
from workflows.lifecycle import dispatching, ending, leasing, recovering
from workflows.models import WorkflowRun, rollup
from workflows.models.run import new_id

HISTORY, WAITING, HELD = 40_000, 10_000, 300
SPREAD = "'t' || n %% 40"

FILL = """
INSERT INTO workflow_runs (id, workflow_type, status, input_payload, output_summary, priority, not_before,
    dispatch_attempts, queued_at, target_agent_id, dispatched_at, claimed_at, claimed_by, claim_session_id, lease_no,
    deadline_at, finished_at, counted, gateway_session_active, key_space, last_seq, created_at, updated_at)
SELECT gen_random_uuid(), {kind}, state, '{{}}', '{{}}', n %% 3, {not_before},
    CASE WHEN state = 'queued' THEN 0 ELSE 1 END, at, CASE WHEN state <> 'queued' THEN 'a' || n %% 20 END,
    CASE WHEN state <> 'queued' THEN at END, {lease.claimed_at}, {lease.claimed_by}, {lease.session}, {lease.number},
    {lease.deadline}, CASE WHEN state IN ('completed', 'failed') THEN at END, state IN ('completed', 'failed'), false,
    'test', 1, at, at
FROM (SELECT n, {state} AS state, now() - n * interval '{pace}' AS at FROM generate_series(1, {count}) n) made
"""


class _NoLease:
    claimed_at = claimed_by = session = deadline = "NULL"
    number = "0"


class _Lease:
    claimed_at, claimed_by, session, number, deadline = (
        "at",
        "'a' || n %% 20",
        "'s' || n",
        "1",
        "at + interval '1 hour'",
    )


def fill(waiting=WAITING, pace="1 second"):
    for agent in range(20):
        AgentFactory(agent_id=f"a{agent}", max_concurrent=50)
    for kind in range(40):
        RoutingRuleFactory(workflow_type=f"t{kind}", agent_id=f"a{kind % 20}", max_concurrent=20)
    with connection.cursor() as cursor:
        for count, kind, state, lease, not_before in (
            (HISTORY, SPREAD, "(ARRAY['completed', 'failed'])[1 + n %% 2]", _NoLease, "NULL"),
            (waiting, "'t1'", "'queued'", _NoLease, "NULL"),
            (waiting, SPREAD, "'queued'", _NoLease, "now() + n * interval '1 minute'"),
            (HELD, SPREAD, "'dispatched'", _NoLease, "NULL"),
            (HELD, SPREAD, "'claimed'", _Lease, "NULL"),
            (HELD, SPREAD, "'running'", _Lease, "NULL"),
            (HELD, SPREAD, "'paused'", _Lease, "NULL"),
        ):
            parts = {"kind": kind, "state": state, "lease": lease, "not_before": not_before, "pace": pace}
            cursor.execute(FILL.format(count=count, **parts), [])
        cursor.execute(
            """INSERT INTO run_leases (run_id, lease_no, agent_id, session_id, timeout_minutes, claimed_at)
            SELECT id, 1, claimed_by, claim_session_id, 60, claimed_at FROM workflow_runs WHERE lease_no = 1"""
        )
        cursor.execute(
            """INSERT INTO run_leases
                (run_id, lease_no, agent_id, session_id, timeout_minutes, claimed_at, ended_at, end_verb)
            SELECT id, 1, target_agent_id, 's', 60, dispatched_at, dispatched_at, 'complete' FROM workflow_runs
            WHERE finished_at IS NOT NULL"""
        )
        cursor.execute("ANALYZE workflow_runs, run_leases, agent_profiles, workflow_agent_routing")


PARAMETERS: dict[str, Any] = {
    "actor": str(DISPATCHER),
    "limit": 10,
    "now": None,
    "reason": None,
    "max_attempts": 3,
    "stale_dispatch_ms": settings.DISPATCHER_STALE_DISPATCH_MS,
    "stale_claim_ms": settings.DISPATCHER_STALE_CLAIM_MS,
    "timeout_minutes": 60,
    "id": new_id(),
    "ids": [new_id(), new_id()],
    "agent_id": "a1",
    "department_id": None,
    "session_id": "s1",
    "lease_no": None,
    "own": "a1",
    "percent": 5,
    "message": None,
    "digest": "d",
    "output_summary": "{}",
    "error": "x",
    "retryable": True,
    "retry_after": None,
}
STATEMENTS: dict[str, tuple[str, Any]] = {
    "recall unclaimed": (recovering.RECALL_UNCLAIMED, PARAMETERS),
    "recall inactive": (recovering.RECALL_INACTIVE, PARAMETERS),
    "exhaust unclaimed": (recovering.EXHAUST_UNCLAIMED, PARAMETERS),
    "release silent": (recovering.RELEASE_SILENT, PARAMETERS),
    "exhaust silent": (recovering.EXHAUST_SILENT, PARAMETERS),
    "time out": (recovering.TIME_OUT, PARAMETERS),
    "promote": (dispatching.PROMOTE, PARAMETERS),
    "dispatch": (dispatching.DISPATCH, PARAMETERS),
    "claim": (leasing.CLAIM, PARAMETERS),
    "start": (leasing.START, PARAMETERS),
    "heartbeat": (leasing.HEARTBEAT, PARAMETERS),
    "complete": (ending.COMPLETE, PARAMETERS),
    "fail": (ending.FAIL, PARAMETERS),
    "release": (ending.RELEASE, PARAMETERS),
    "stats: trouble": (stats.TROUBLE, PARAMETERS),
    "unroutable: types": (unroutable.TYPES, []),
    "unroutable: count": (unroutable.COUNT, [["t1"]]),
    "fold": (rollup.FOLD, PARAMETERS),
    "uncount": (rollup.UNCOUNT, PARAMETERS),
    "held by type": (admission.HELD_BY_TYPE, [["t1", "t2", "t3"]]),
    "held by agent": (admission.HELD_BY_AGENT, [["a1", "a2"]]),
    "holders of a type": (admission.HOLDERS.format(column="workflow_type"), ["t1"]),
    "holders of an agent": (admission.HOLDERS.format(column="target_agent_id"), ["a1"]),
}
# Which index a statement is meant to walk, where it matters that it is this one.
MEANT = {
    "recall unclaimed": {"run_unclaimed"},
    "exhaust unclaimed": {"run_unclaimed"},
    "time out": {"run_deadline"},
    "promote": {"run_parked"},
    "held by type": {"run_held_by_type"},
    "held by agent": {"run_held_by_agent"},
    "ready runs of a pair": {"run_ready"},
    "unroutable: types": {"run_ready"},
    "unroutable: count": {"run_ready"},
    "fold": {"run_uncounted"},
    "stats": {"run_uncounted", "run_requeued"},
    "active": {"workflow_runs_pkey"},
}


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def explain(sql, parameters):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", parameters)
        found = cursor.fetchone()[0]
    return (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]


@pytest.mark.django_db
def test_no_hot_statement_reads_the_table_through():
    fill()
    assert WorkflowRun.objects.count() == HISTORY + 2 * WAITING + 4 * HELD
    ready = WorkflowRun.objects.all().ready("t1", "")[:10].query.sql_with_params()
    plans = {name: explain(*call) for name, call in (STATEMENTS | {"ready runs of a pair": ready}).items()}
    bad = [wrong for name, plan in plans.items() for wrong in misses(name, plan)]
    ordered = [part["Node Type"] for part in nodes(plans["ready runs of a pair"])]
    if any("Sort" in kind for kind in ordered):
        bad.append("ready runs of a pair: sorted, where the index has the order")
    assert not bad, "\n".join(bad)


@pytest.mark.django_db
def test_no_figure_and_no_list_of_trouble_reads_the_history():
    fill(waiting=200, pace="10 seconds")
    make_run("queued", workflow_type="nobody")
    now, runs = clock.now(), WorkflowRun.objects.all()
    found = {f"stuck {n}": some.values_list("pk")[:50] for n, some in enumerate(stuck._candidates(runs, now))}
    found["active"] = runs.holding_slots().order_by("-created_at", "-id").values_list("pk")[:50]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = on")  # what the look for types switched off ends with its transaction
    statements = {name: some.query.sql_with_params() for name, some in found.items()}
    plans = {name: explain(*call) for name, call in statements.items()} | {"stats": explain(stats.COUNTS, [])}
    bad = [wrong for name, plan in plans.items() for wrong in misses(name, plan)]
    assert not bad, "\n".join(bad)


def misses(name, plan):
    parts = list(nodes(plan))
    for part in parts:
        if part["Node Type"] == "Seq Scan" and part["Relation Name"] in ("workflow_runs", "run_leases"):
            yield f"{name}: Seq Scan of {part['Relation Name']}"
    used = {part["Index Name"] for part in parts if "Index Name" in part}
    if missing := MEANT.get(name, set()) - used:
        yield f"{name}: uses {sorted(used)}, not {sorted(missing)}"
