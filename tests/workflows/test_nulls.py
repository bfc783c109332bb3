"""Runs with nothing but what they must have, and rows that somebody else has locked: everything works all the same.

django-oauth/django-oauth-toolkit#714: a lock over an optional relation failed once a row without it was reached.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, transaction

from dispatcher_project import clock
from governance.actors import DISPATCHER
from governance.models import Agent
from routing.models import RoutingRule
from tests import invariants
from tests.concurrently import Background
from tests.factories import OPERATOR, AgentFactory, DepartmentFactory, RoutingRuleFactory, agent_actor, make_run
from workflows import lifecycle
from workflows.admission import Facts, Pair, explain, hold_reasons
from workflows.models import WorkflowRun, rows

A1 = agent_actor("a1")


def whole_life(pk, *, agent="a1", department_id=None):
    actor = agent_actor(agent)
    explain(rows.get(pk), max_attempts=3)
    assert lifecycle.dispatch([pk], agent_id=agent, department_id=department_id, actor=DISPATCHER)
    lifecycle.claim(pk, session_id="s", actor=actor)
    lifecycle.heartbeat(pk, session_id="s", actor=actor)
    lifecycle.fail(pk, session_id="s", actor=actor, error="x", retryable=True, retry_after_seconds=0)
    lifecycle.promote(limit=10)
    assert lifecycle.dispatch([pk], agent_id=agent, department_id=department_id, actor=DISPATCHER)
    lifecycle.claim(pk, session_id="s", actor=actor)
    lifecycle.start(pk, session_id="s", actor=actor)
    lifecycle.release(pk, session_id="s", actor=actor)
    assert lifecycle.dispatch([pk], agent_id=agent, department_id=department_id, actor=DISPATCHER)
    lifecycle.claim(pk, session_id="s", actor=actor)
    return lifecycle.complete(pk, session_id="s", actor=actor)


@pytest.mark.django_db
def test_a_run_without_rule_owner_department_or_agent_row():
    created = lifecycle.create("unrouted", actor=OPERATOR).run
    assert whole_life(created["id"], agent="ghost")["status"] == "completed"
    assert created["rule_agent_id"] is created["max_concurrent"] is created["timeout_minutes"] is None
    invariants.check()


@pytest.mark.django_db
def test_a_run_with_everything():
    AgentFactory(agent_id="a1", department=DepartmentFactory(department_id="d1"), max_concurrent=3)
    RoutingRuleFactory(max_attempts=5)
    run = lifecycle.create(
        "doc", actor=OPERATOR, owner_agent_id="a1", initiator="me", priority=5, max_attempts=9, idempotency_key="k"
    ).run
    done = whole_life(run["id"], department_id="d1")
    assert (done["status"], done["charge_department_id"]) == ("completed", "d1")
    invariants.check()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "sweep", "moved_to"),
    [
        ("dispatched", lifecycle.recall_unclaimed, "queued"),
        ("running", lifecycle.release_silent, "queued"),
        ("claimed", lifecycle.time_out, "timed_out"),
    ],
)
def test_sweeps_reach_runs_that_no_rule_and_no_agent_row_covers(state, sweep, moved_to):
    run = make_run(state, workflow_type="unrouted", agent="ghost", now=clock.now() - timedelta(hours=3))
    assert [(row["id"], row["status"]) for row in sweep(actor=DISPATCHER, limit=10)] == [(run.pk, moved_to)]
    invariants.check()


@pytest.mark.django_db(transaction=True)
def test_who_edits_a_rule_and_an_agent_holds_up_no_run():
    AgentFactory(agent_id="a1", max_concurrent=5)
    RoutingRuleFactory(max_concurrent=5)
    run = lifecycle.create("doc", actor=OPERATOR).run
    stale = [make_run(state, now=clock.now() - timedelta(hours=3)).pk for state in ("dispatched", "running", "claimed")]
    with transaction.atomic():
        assert RoutingRule.objects.select_for_update().get(pk="doc")
        assert Agent.objects.select_for_update().get(pk="a1")
        job = Background(partial(_with_patience, run["id"], stale))
        assert job.result() == ["completed", "queued", "timed_out", "timed_out"]
    invariants.check()


def _with_patience(pk, stale):
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
    pair = Pair("doc", None)
    assert Facts([pair]).verdict(pair).target == "a1"
    assert hold_reasons([rows.get(pk)]) == {pk: None}
    whole_life(pk)
    lifecycle.time_out(actor=DISPATCHER, limit=10)
    lifecycle.recall_unclaimed(actor=DISPATCHER, limit=10)
    statuses = dict(WorkflowRun.objects.values_list("pk", "status"))
    return [statuses[each] for each in (pk, *stale)]
