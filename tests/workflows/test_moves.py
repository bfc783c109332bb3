"""What a move rings: each run that moved, and the agent that has one now; never a heartbeat."""

from __future__ import annotations

import pytest

from governance.actors import DISPATCHER
from tests.factories import OPERATOR, agent_actor, make_run
from workflows import lifecycle
from workflows.models import moves


@pytest.fixture
def rung(db, monkeypatch):
    keys = []
    monkeypatch.setattr(moves, "ring", lambda *rung: keys.extend(rung))

    def since_last():
        found = set(keys)
        keys.clear()
        return found

    return since_last


def test_dispatch_rings_the_agent_and_the_runs(route, rung):
    runs = [make_run() for _ in range(2)]
    lifecycle.dispatch([run.pk for run in runs], agent_id="a1", department_id=None, actor=DISPATCHER)
    assert rung() == {"pending:a1", *(f"run:{run.pk}" for run in runs)}


def test_each_verb_rings_its_run(route, rung):
    run = make_run("dispatched")
    lifecycle.claim(run.pk, session_id="s1", actor=agent_actor())
    assert rung() == {f"run:{run.pk}"}
    lifecycle.complete(run.pk, session_id="s1", actor=agent_actor(), output_summary={})
    assert rung() == {f"run:{run.pk}"}
    lifecycle.complete(run.pk, session_id="s1", actor=agent_actor(), output_summary={})  # a repeat moves nothing
    assert rung() == set()


@pytest.mark.parametrize("beat", ["heartbeat", "session_heartbeat"])
def test_of_the_heartbeats_only_the_first_rings(beat, route, rung):
    run = make_run("claimed")
    call = {
        "heartbeat": lambda: lifecycle.heartbeat(run.pk, session_id="s1", actor=agent_actor()),
        "session_heartbeat": lambda: lifecycle.session_heartbeat("s1", actor=agent_actor()),
    }[beat]
    call()
    assert rung() == {f"run:{run.pk}"}
    call()
    assert rung() == set()


def test_a_cancel_that_was_one_before_rings_nothing(route, rung):
    run = make_run()
    lifecycle.cancel(run.pk, actor=OPERATOR)
    assert rung() == {f"run:{run.pk}"}
    lifecycle.cancel(run.pk, actor=OPERATOR)
    assert rung() == set()
