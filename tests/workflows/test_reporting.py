"""What holders report on their way: sessions' heartbeats, steps, artifacts, gateway sessions."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from functools import partial

import pytest

from dispatcher_project import clock
from dispatcher_project.errors import DomainError
from governance.actors import DISPATCHER
from tests import invariants, tables
from tests.concurrently import together
from tests.factories import OPERATOR, ORCHESTRATOR, AgentFactory, RoutingRuleFactory, agent_actor, make_run
from workflows import lifecycle, states
from workflows.errors import LeaseLost, RunEnded, RunNotFound
from workflows.lifecycle.reporting import MAX_URIS, addresses
from workflows.models import RunStep, WorkflowArtifact
from workflows.models.run import new_id

A1, A2 = agent_actor("a1"), agent_actor("a2")
HELD = ("claimed", "running", "paused")
NOT_HELD = [state for state in states.STATES if state not in HELD]


def step(run, session="s1", actor=A1, name="build", **more):
    return lifecycle.step(run.pk, session_id=session, actor=actor, step_name=name, **more)


def artifact(run, session="s1", actor=A1, uri="s3://bucket/key", **more):
    return lifecycle.artifact(run.pk, session_id=session, actor=actor, uri=uri, **more)


def bind(run, session="gw", actor=A1, active=True):
    return lifecycle.bind_session(run.pk, gateway_session_id=session, actor=actor, active=active)


REPORTS = pytest.mark.parametrize("report", [step, artifact])


@pytest.mark.django_db
class TestFence:
    @REPORTS
    @pytest.mark.parametrize("state", HELD)
    def test_keeps_the_lease_alive_and_moves_nothing(self, report, state):
        run = make_run(state, now=clock.now() - timedelta(minutes=5))
        before = tables.run(run.pk)
        report(run)
        after = tables.run(run.pk)
        assert tables.changed(before, after) <= {"current_step", "last_heartbeat_at", "updated_at"}
        assert after["last_heartbeat_at"] == after["updated_at"] > before["updated_at"]
        invariants.check()

    @REPORTS
    @pytest.mark.parametrize("state", NOT_HELD)
    def test_refused_without_a_lease(self, report, state):
        run = make_run(state)
        before = tables.everything()
        with pytest.raises(RunEnded if states.is_final(state) else LeaseLost):
            report(run)
        assert tables.everything() == before
        assert not RunStep.objects.exists()
        assert not WorkflowArtifact.objects.exists()

    @REPORTS
    @pytest.mark.parametrize(
        "other", [{"session": "s2"}, {"actor": A2}, {"lease_no": 2}, {"lease_no": 0}, {"session": ""}], ids=str
    )
    def test_refused_for_anybody_else(self, report, other):
        run = make_run("running")
        before = tables.everything()
        with pytest.raises(LeaseLost) as refusal:
            report(run, **other)
        assert refusal.value.facts["directive"] == "stop"
        assert tables.everything() == before

    @REPORTS
    def test_an_operator_may_act_for_the_holder(self, report):
        run = make_run("running")
        report(run, actor=OPERATOR)
        report(run, actor=ORCHESTRATOR, lease_no=1)

    @REPORTS
    def test_unknown_run(self, report):
        run = make_run("running")
        run.pk = new_id()
        with pytest.raises(RunNotFound):
            report(run)


@pytest.mark.django_db
class TestStep:
    def test_one_row_per_name_as_last_reported(self):
        run = make_run("running")
        assert step(run, status="started", output={"n": Decimal("1.10")})["current_step"] == "build"
        step(run, name="test")
        assert step(run, status="done")["current_step"] == "build"
        build, test = RunStep.objects.order_by("id")
        assert (build.status, build.output, build.lease_no) == ("done", {"n": 1.1}, 1)
        assert build.first_at < test.first_at < build.last_at
        assert (test.status, test.output) == (None, None)

    def test_a_later_output_replaces_the_one_before(self):
        run = make_run("running")
        step(run, output=[1])
        step(run, output={"a": None})
        assert RunStep.objects.get().output == {"a": None}


@pytest.mark.django_db
class TestArtifacts:
    def test_the_same_address_is_said_anew(self):
        run = make_run("running")
        first = artifact(run, label="old", metadata={"a": 1})
        again = artifact(run, artifact_type="report", label="new")
        assert first["id"] == again["id"]
        found = WorkflowArtifact.objects.get()
        assert (found.artifact_type, found.label, found.metadata) == ("report", "new", {})
        assert (found.created_by, found.created_at) == ("agent:a1", first["created_at"])

    def test_two_runs_may_have_the_same_address(self):
        artifact(make_run("running"))
        artifact(make_run("running"))
        assert WorkflowArtifact.objects.count() == 2

    def test_collected_from_the_output_once_and_beside_what_was_said(self):
        run = make_run("running")
        artifact(run, uri="https://x.example/1", label="mine")
        output = {"a": "https://x.example/1", "b": {"c": ["https://x.example/2", "https://x.example/2"]}, "d": "no"}
        for _ in range(2):
            lifecycle.complete(run.pk, session_id="s1", actor=A1, output_summary=output)
        found = WorkflowArtifact.objects.order_by("id").values_list("uri", "label", "artifact_type")
        assert list(found) == [("https://x.example/1", "mine", "url"), ("https://x.example/2", "b.c.0", "url")]

    def test_addresses_in_an_output(self):
        assert addresses({"x": "see https://x.example", "y": "ftp://x", "z": "https://x.example/ a"}) == {}
        assert addresses({"x": "http://" + "y" * 2000}) == {}
        many = {str(n): f"https://x.example/{n}" for n in range(MAX_URIS + 5)}
        assert len(addresses(many)) == MAX_URIS
        deep = "https://x.example"
        for _ in range(2000):
            deep = [deep]
        assert list(addresses(deep)) == ["https://x.example"]


@pytest.mark.django_db
class TestBind:
    @pytest.mark.parametrize("state", HELD)
    @pytest.mark.parametrize("actor", [A1, OPERATOR, ORCHESTRATOR])
    def test_touches_the_gateway_columns_only(self, state, actor):
        run = make_run(state)
        before = tables.everything()
        bind(run, actor=actor)
        after = tables.everything()
        assert after["run_leases"] == before["run_leases"]
        assert after["workflow_run_events"] == before["workflow_run_events"]
        changed = tables.changed(before["workflow_runs"][0], after["workflow_runs"][0])
        assert changed == {"gateway_session_id", "gateway_session_active", "updated_at"}
        row = bind(run, actor=actor, active=False)
        assert (row["gateway_session_id"], row["gateway_session_active"]) == ("gw", False)

    def test_a_late_unbind_of_another_session_changes_nothing(self):
        run = make_run("running")
        bind(run)
        before = tables.everything()
        assert bind(run, "old", active=False)["gateway_session_active"] is True
        assert tables.everything() == before

    @pytest.mark.parametrize("state", NOT_HELD)
    def test_needs_a_lease(self, state):
        with pytest.raises(RunEnded if states.is_final(state) else LeaseLost):
            bind(make_run(state), actor=OPERATOR)

    def test_not_by_strangers(self):
        with pytest.raises(LeaseLost):
            bind(make_run("running"), actor=A2)


@pytest.mark.django_db
class TestSessionHeartbeat:
    def test_starts_what_was_claimed_and_touches_the_rest(self):
        before = clock.now() - timedelta(minutes=5)
        claimed, running, paused = (make_run(state, now=before) for state in HELD)
        rows = lifecycle.session_heartbeat("s1", actor=A1)
        assert {row["id"]: row["status"] for row in rows} == {
            claimed.pk: "running", running.pk: "running", paused.pk: "paused"
        }  # fmt: skip
        assert all(row["last_heartbeat_at"] > before for row in rows)
        assert [event["verb"] for event in tables.timeline(claimed.pk)] == ["create", "start"]
        assert len(tables.timeline(running.pk)) == 1
        invariants.check()

    def test_only_of_this_session_and_agent(self):
        make_run("running", session="s2")
        make_run("running", agent="a2")
        make_run("completed")
        before = tables.everything()
        assert lifecycle.session_heartbeat("s1", actor=A1) == []
        assert tables.everything() == before

    def test_an_operator_beats_for_everybody_of_this_session_name(self):
        make_run("running")
        make_run("running", agent="a2")
        assert len(lifecycle.session_heartbeat("s1", actor=OPERATOR)) == 2


@pytest.mark.django_db(transaction=True)
class TestRaces:
    @pytest.fixture(autouse=True)
    def promises_hold(self, transactional_db):
        AgentFactory(agent_id="a1")
        RoutingRuleFactory(max_concurrent=1000)
        yield
        invariants.check()

    def test_session_heartbeats_and_ends_never_deadlock(self):
        for _ in range(5):
            runs = [make_run("running") for _ in range(12)]
            beats = [partial(lifecycle.session_heartbeat, "s1", actor=A1)] * 6
            ends = [
                partial(lifecycle.complete, run.pk, session_id="s1", actor=A1, output_summary={}) for run in runs[::-1]
            ]
            outcomes = together(*beats, *ends)
            assert not [outcome for outcome in outcomes if isinstance(outcome, DomainError)]
            assert {tables.run(run.pk)["status"] for run in runs} == {"completed"}

    def test_sessions_of_one_name_beat_at_once(self):
        for _ in range(10):
            make_run("claimed")
        together(*[partial(lifecycle.session_heartbeat, "s1", actor=A1)] * 8)
        assert {row["status"] for row in lifecycle.session_heartbeat("s1", actor=A1)} == {"running"}

    @REPORTS
    def test_a_report_against_the_loss_of_the_lease(self, report):
        for _ in range(10):
            run = make_run("running", now=clock.now() - timedelta(hours=1), timeout_minutes=600)
            reported, released = together(
                partial(report, run), partial(lifecycle.release_silent, actor=DISPATCHER, limit=10)
            )
            after = tables.run(run.pk)
            assert (after["status"] == "queued") is bool(released)
            assert isinstance(reported, DomainError) or after["status"] in ("running", "queued")
            lifecycle.cancel(run.pk, actor=OPERATOR)

    def test_the_same_step_and_artifact_at_once_are_one(self):
        run = make_run("running")
        together(*[partial(step, run)] * 6, *[partial(artifact, run)] * 6)
        assert (RunStep.objects.count(), WorkflowArtifact.objects.count()) == (1, 1)
