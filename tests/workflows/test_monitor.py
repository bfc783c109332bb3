from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import IntegrityError, transaction

from dispatcher_project import clock
from routing.models import RoutingRule
from tests.factories import agent_actor, make_run
from workflows import lifecycle, states
from workflows.errors import RunEnded
from workflows.models import ProcessInstance, WorkflowRun, rows
from workflows.monitor import overdue as overdue_module
from workflows.monitor.overdue import overdue
from workflows.ticking import Pass

pytestmark = pytest.mark.django_db


def ago(**span):
    return clock.now() - timedelta(**span)


def test_b017_a_silent_run_is_timed_out_without_any_call_of_its_agent(route, capsys):
    run = make_run(states.CLAIMED, now=ago(minutes=3), timeout_minutes=2)
    call_command("run_monitor", "--once")
    assert capsys.readouterr().out == "Timed out 1.\n"
    row = rows.get(run.pk)
    assert (row["status"], row["last_error"]) == ("timed_out", "Timed out after 2 minutes")
    assert clock.now() - row["finished_at"] < timedelta(seconds=10)
    with pytest.raises(RunEnded):
        lifecycle.heartbeat(run.pk, session_id="s1", actor=agent_actor())
    assert ProcessInstance.objects.get().last_tick_summary["timed_out_count"] == 1


@pytest.mark.parametrize("minutes", [0, -1, -5, 525_601])
def test_b015_no_rule_has_a_timeout_that_would_end_a_run_at_once(route, minutes):
    with pytest.raises(IntegrityError, match="routing_timeout_minutes_range"), transaction.atomic():
        RoutingRule.objects.update(timeout_minutes=minutes)
    run = make_run(states.RUNNING, now=ago(days=3), timeout_minutes=525_600, last_heartbeat_at=ago(seconds=10))
    call_command("run_monitor", "--once")
    assert rows.get(run.pk)["status"] == "running"


def test_b016_runs_that_are_in_time_never_hide_those_that_are_not(route, monkeypatch):
    monkeypatch.setattr("workflows.ticking.STATEMENT_LIMIT", 10)
    for n in range(15):
        make_run(states.RUNNING, session=f"s{n}", now=ago(days=2), timeout_minutes=9999, last_heartbeat_at=clock.now())
    late = [make_run(states.RUNNING, session=f"t{n}", deadline_at=ago(minutes=1)).pk for n in range(3)]
    assert overdue(Pass()).counts["timed_out"] == 3
    assert set(WorkflowRun.objects.filter(status="timed_out").values_list("pk", flat=True)) == set(late)


def test_freed_slots_are_rung_for(route, monkeypatch):
    rung = []
    monkeypatch.setattr(overdue_module, "ring", lambda *keys: rung.append(set(keys)))
    make_run(states.RUNNING, deadline_at=ago(minutes=1))
    overdue(Pass())
    overdue(Pass())
    assert rung == [{"type:doc", "agent:a1"}]


def test_timeouts_are_suspended_after_an_outage_of_ours(route):
    run = make_run(states.RUNNING, deadline_at=ago(minutes=1))
    overdue(Pass(suspended=True))
    assert rows.get(run.pk)["status"] == "running"
