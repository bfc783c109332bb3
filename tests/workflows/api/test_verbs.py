"""The verbs over HTTP: what they take, what they answer, and the cases of agents that lost their run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher_project import clock
from governance.actors import DISPATCHER
from governance.models import Agent
from routing.models import RoutingRule
from tests.factories import AgentFactory, make_run
from tests.workflows.api.conftest import Api
from tests.workflows.api.test_conventions import problem
from tests.workflows.api.test_life import dispatch
from workflows import lifecycle, states
from workflows.models import RunEvent, WorkflowRun

S1 = {"session_id": "s1"}
S2 = {"session_id": "s2"}


def verbs_of(run):
    return list(RunEvent.objects.filter(run=run).order_by("seq").values_list("verb", flat=True))


def fresh(run):
    return WorkflowRun.objects.get(pk=run.pk)


class TestCreate:
    @pytest.mark.parametrize(
        ("field", "bad"),
        [
            ("workflow_type", None),
            ("workflow_type", ""),
            ("workflow_type", 1),
            ("workflow_type", "x" * 101),
            ("workflow_type", "a/b"),
            ("owner_agent_id", ""),
            ("owner_agent_id", "nobody"),
            ("owner_agent_id", 5),
            ("initiator", "x" * 201),
            ("priority", "5"),
            ("priority", 1.5),
            ("priority", 2**31),
            ("priority", -(2**31) - 1),
            ("priority", True),
            ("priority", 2**70),
            ("max_retries", -1),
            ("max_retries", 1000),
            ("max_retries", "3"),
            ("not_before", "2026-11-29T12:00:00"),
            ("not_before", "2026-02-30T00:00:00Z"),
            ("not_before", 1767225600),
            ("not_before", "soon"),
            ("not_before", "9999-12-31T23:59:59-14:00"),
            ("not_before", "0001-01-01T00:00:00+14:00"),
        ],
    )
    def test_bad_fields(self, field, bad, ops):
        body = problem(ops.post("workflow-runs", {"workflow_type": "doc", field: bad}), 400, "invalid")
        assert body["errors"][0]["field"] == field
        assert not WorkflowRun.objects.exists()

    def test_all_fields(self, ops):
        later = clock.now() + timedelta(hours=3)
        body = {
            "workflow_type": "doc",
            "input_payload": [1, {"a": None}],
            "owner_agent_id": "a1",
            "initiator": "ann",
            "priority": -(2**31),
            "not_before": later.isoformat(),
            "max_retries": 0,
        }
        run = ops.post("workflow-runs", body).json()
        for name in ("workflow_type", "input_payload", "owner_agent_id", "initiator", "priority", "max_retries"):
            assert run[name] == body[name]
        assert run["not_before"] == later.isoformat().replace("+00:00", "Z")
        assert (run["hold_reason"], run["max_attempts"]) == ("not_before", 1)

    def test_null_is_not_given(self, ops):
        run = ops.post("workflow-runs", {"workflow_type": "doc", "priority": None, "input_payload": None}).json()
        assert (run["priority"], run["input_payload"]) == (0, {})

    def test_no_route_is_said_at_once(self, ops):
        run = ops.post("workflow-runs", {"workflow_type": "unknown"}).json()
        assert (run["hold_reason"], run["target_agent_id"], run["timeout_minutes"]) == ("no_route", None, 60)

    def test_numbers_stay_exact(self, ops):
        raw = b'{"workflow_type": "doc", "input_payload": {"a": 0.1, "b": 12345678901234567890.123, "c": 1e2}}'
        made = ops.post("workflow-runs", raw)
        assert b'"b":12345678901234567890.123' in made.content.replace(b": ", b":")


class TestB054Idempotency:
    BODY = {"workflow_type": "doc", "input_payload": {"n": 1}}

    def test_one_run_for_a_key(self, a1, a2):
        first = a1.post("workflow-runs", self.BODY, Idempotency_Key="K1")
        again = a1.post("workflow-runs", self.BODY, Idempotency_Key="K1")
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["id"] == again.json()["id"]
        other = problem(
            a1.post("workflow-runs", {**self.BODY, "input_payload": {"n": 2}}, Idempotency_Key="K1"),
            409,
            "idempotency_conflict",
        )
        assert other["run"]["id"] == first.json()["id"]
        assert a2.post("workflow-runs", self.BODY, Idempotency_Key="K1").json()["id"] != first.json()["id"]

    def test_without_a_key_two_runs(self, a1):
        assert len({a1.post("workflow-runs", self.BODY).json()["id"] for _ in range(2)}) == 2

    @pytest.mark.parametrize("key", ["", "x" * 201, "a\x00b", "a\x7fb"])
    def test_bad_keys(self, key, a1):
        problem(a1.post("workflow-runs", self.BODY, Idempotency_Key=key), 400, "invalid")

    def test_longest_key(self, a1):
        assert a1.post("workflow-runs", self.BODY, Idempotency_Key="x" * 200).status_code == 201

    def test_either_spelling_is_the_same_body(self, a1):
        first = a1.post("workflow-runs", self.BODY, Idempotency_Key="K")
        again = a1.post("workflow-runs", {"workflowType": "doc", "inputPayload": {"n": 1}}, Idempotency_Key="K")
        assert again.json()["id"] == first.json()["id"]


class TestClaim:
    def test_again_by_the_same_session(self, a1):
        run = make_run("dispatched")
        first, again = a1.run(run, "claim", S1), a1.run(run, "claim", S1)
        assert (first.status_code, again.status_code, again.json()["lease_no"]) == (200, 200, 1)
        assert first.json() == again.json()
        assert verbs_of(run) == ["create", "claim"]
        problem(a1.run(run, "claim", S2), 409, "not_claimable")

    def test_for_whom(self, a1, a2, main):
        run = make_run("dispatched")
        problem(a2.run(run, "claim", S1), 409, "not_claimable")
        problem(a1.run(run, "claim", {**S1, "agent_id": "a2"}), 409, "not_claimable")
        problem(main.run(run, "claim", {**S1, "agent_id": "main"}), 409, "not_claimable")
        assert main.run(run, "claim", S1).json()["claimed_by"] == "a1"
        assert a1.run(run, "heartbeat", S1).status_code == 200  # the orchestrator's session, the agent's token

    def test_inactive_agent(self, a1):
        run = make_run("dispatched")
        Agent.objects.filter(pk="a1").update(active=False, inactive_reason="on fire")
        assert "on fire" in problem(a1.run(run, "claim", S1), 409, "agent_inactive")["detail"]

    def test_payload_is_whole(self, a1):
        run = make_run("dispatched", input_payload={"text": "x" * 100_000})
        assert len(a1.run(run, "claim", S1).json()["input_payload"]["text"]) == 100_000


class TestB005Terminal:
    @pytest.mark.parametrize("state", states.FINAL)
    def test_no_way_out(self, state, a1, main):
        run = make_run(state)
        before = WorkflowRun.objects.filter(pk=run.pk).values().get()
        assert a1.get("workflow-runs/pending?limit=100").json()["runs"] == []
        for api in (a1, main):
            problem(api.run(run, "claim", {"session_id": "S9"}), 409, "not_claimable")
            for verb in ("start", "heartbeat", "complete", "release", "fail"):
                body = problem(api.run(run, verb, {**S1, "error": "x"}), 409, "run_ended")
                assert (body["run"]["status"], body["directive"]) == (state, "stop")
        assert WorkflowRun.objects.filter(pk=run.pk).values().get() == before


class TestB003Fencing:
    def test_the_old_holder_cannot_end_the_run_of_the_new_one(self, a1, a2):
        run = make_run("claimed", now=clock.now() - timedelta(hours=1))
        assert lifecycle.release_silent(actor=DISPATCHER, limit=10)
        AgentFactory(agent_id="a2")
        RoutingRule.objects.update(agent_id="a2")
        dispatch(run.pk, "a2")
        assert a2.run(run, "claim", S2).json()["lease_no"] == 2
        for verb in ("start", "heartbeat", "complete", "fail", "release"):
            for body in (S1, {**S1, "lease_no": 1}, {**S2, "lease_no": 2}):
                problem(a1.run(run, verb, {**body, "error": "x", "output_summary": {"v": "old"}}), 409, "lease_lost")
        assert a2.run(run, "complete", {**S2, "output_summary": {"v": "new"}}).json()["output_summary"] == {"v": "new"}
        problem(a1.run(run, "complete", {**S1, "output_summary": {"v": "old"}}), 409, "run_ended")
        assert fresh(run).output_summary == {"v": "new"}

    def test_two_agents_may_use_the_same_session_id(self, a1, a2):
        one, two = make_run("claimed", agent="a1"), make_run("claimed", agent="a2")
        problem(a1.run(two, "complete", S1), 409, "lease_lost")
        assert a1.run(one, "complete", S1).status_code == 200
        assert fresh(two).status == "claimed"


class TestHeartbeat:
    @pytest.mark.parametrize(
        "bad",
        [
            {"progress": 5},
            {"progress": {"percent": -1}},
            {"progress": {"percent": 101}},
            {"progress": {"percent": "50"}},
            {"progress": {"percent": True}},
            {"progress": {"message": "x" * 501}},
            {"progress": {"message": 1}},
            {"usage": 1},
            {"usage": {"input_tokens": -1}},
            {"usage": {"input_tokens": 1.5}},
            {"usage": {"inputTokens": "1"}},
            {"usage": {"currency": "EUR"}},
            {"usage": {"cost_estimate": "NaN"}},
            {"usage": {"cost_estimate": "Infinity"}},
            {"usage": {"cost_estimate": "1e400"}},
            {"usage": [{"model_id": "m"}, {"modelId": "m"}]},
            {"usage": {"inputTokens": 1, "input_tokens": 2}},
        ],
        ids=str,
    )
    def test_bad_fields(self, bad, a1):
        run = make_run("running")
        before = fresh(run).last_heartbeat_at
        problem(a1.run(run, "heartbeat", {**S1, **bad}), 400, "invalid")
        assert fresh(run).last_heartbeat_at == before

    def test_usage_is_checked_and_not_recorded(self, a1):
        run = make_run("claimed")
        usage = {"modelId": "m", "inputTokens": 5, "cost_estimate": 0.1, "currency": "USD"}
        body = a1.run(run, "heartbeat", {**S1, "usage": [usage]}).json()
        assert (body["status"], body["usage_recorded"], body["usage_code"]) == (
            "running",
            False,
            "metering_unavailable",
        )

    def test_paused(self, a1):
        shown = a1.run(make_run("paused"), "heartbeat", S1).json()
        assert (shown["directive"], shown["status"], shown["hold_reason"]) == ("pause", "paused", "paused")

    def test_b056_times_of_the_client_count_for_nothing(self, a1):
        run = make_run("claimed")
        body = {**S1, "last_heartbeat_at": "2099-01-01T00:00:00Z", "timestamp": 0, "now": "2099-01-01T00:00:00Z"}
        shown = a1.run(run, "heartbeat", body).json()
        assert not shown["last_heartbeat_at"].startswith("2099")
        assert fresh(run).last_heartbeat_at <= clock.now()
        past = "1999-01-01T00:00:00Z"
        made = a1.post(
            "workflow-runs",
            {"workflow_type": "doc", "created_at": past, "dispatched_at": past, "started_at": past, "queued_at": past},
        ).json()
        assert past not in made.values()
        assert made["dispatched_at"] is None
        assert made["created_at"] > shown["created_at"]


def test_explain(a1, ops):
    held = make_run("running")
    run = make_run("queued")
    body = ops.get(f"workflow-runs/{run.pk}/explain").json()
    assert body["dispatchable"] is False
    assert body["reasons"][0]["code"] == "type_full"
    assert body["reasons"][0]["holders"][0]["id"] == str(held.pk)
    assert ops.get(f"workflow-runs/{held.pk}/explain").json()["reasons"][0]["code"] == "not_queued"
    WorkflowRun.objects.filter(pk=held.pk).delete()
    assert ops.get(f"workflow-runs/{run.pk}/explain").json() == {"dispatchable": True, "reasons": []}


def test_hot_calls_are_one_statement_beside_authentication(route, django_assert_num_queries):
    run, api = make_run("dispatched"), Api("a1")
    api.get("workflow-routing")  # "last used" is written once a minute
    for verb in ("claim", "start", "heartbeat", "complete"):
        with django_assert_num_queries(2):
            assert api.run(run, verb, S1).status_code == 200
