"""The checker itself: a promise that is broken by hand is named, a healthy table is not."""

from __future__ import annotations

import pytest
from django.db import connection

from tests import invariants
from tests.factories import OPERATOR, AgentFactory, RoutingRuleFactory, RunLeaseFactory, make_run
from workflows import lifecycle, states
from workflows.models import RunEvent, RunLease, WorkflowRun

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", states.STATES)
def test_what_the_factory_makes_is_healthy(state):
    make_run(state)
    invariants.check()


def _end_the_lease(run):
    RunLease.objects.filter(run_id=run.pk).update(ended_at=run.claimed_at, end_verb="test")


def _lose_an_entry(run):
    RunEvent.objects.filter(run_id=run.pk, seq=1).delete()


def _break_the_chain(run):
    RunEvent.objects.filter(run_id=run.pk).update(from_status="paused")


def _move_without_an_entry(run):
    WorkflowRun.objects.filter(pk=run.pk).update(status="running")


def _jump(run):
    RunEvent.objects.filter(run_id=run.pk).update(verb="approve")


def _forget_a_lease(run):
    WorkflowRun.objects.filter(pk=run.pk).update(lease_no=2)


def _overfill(run):
    RoutingRuleFactory(max_concurrent=0)


def _overload(run):
    AgentFactory(max_concurrent=0)


@pytest.mark.parametrize(
    ("damage", "promise"),
    [
        (_end_the_lease, "no live lease that matches"),
        (_lose_an_entry, "last_seq"),
        (_break_the_chain, "does not start from where"),
        (_move_without_an_entry, "not how the run stands"),
        (_jump, "no move of the table"),
        (_forget_a_lease, "not its newest lease's"),
        (_overfill, "a type holds more slots"),
        (_overload, "an agent holds more slots"),
    ],
)
def test_damage_is_named(damage, promise):
    run = make_run("claimed")
    damage(run)
    assert any(promise in line for line in invariants.violations())


def test_a_lease_that_outlives_its_run_is_named():
    run = make_run("completed")
    RunLeaseFactory(run=run, lease_no=2)
    assert any("nobody holds" in line for line in invariants.violations())


def test_an_attempt_out_of_nowhere_is_named():
    run = make_run("queued")
    WorkflowRun.objects.filter(pk=run.pk).update(dispatch_attempts=1)
    assert any("more attempts" in line for line in invariants.violations())


def test_a_timeline_that_runs_backwards_is_named(route):
    run = make_run("queued")
    lifecycle.dispatch([run.pk], agent_id="a1", department_id=None, actor=OPERATOR)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE workflow_run_events SET at = at - interval '1 hour' WHERE seq = 2")
    assert any("backwards" in line for line in invariants.violations())
    assert not invariants.violations(clock=False)
