"""/api/workflow-routing, /api/agents, /api/departments."""

from __future__ import annotations

import pytest

from governance.models import Agent
from routing.models import RoutingRule
from tests.factories import DepartmentFactory, RoutingRuleFactory, make_run
from tests.workflows.api.conftest import Api
from tests.workflows.api.test_conventions import problem

PATH = "workflow-routing"
RULE = {"workflow_type": "new", "agent_id": "a1"}


@pytest.fixture
def rings(monkeypatch):
    rung = []
    for module in ("routing_views", "fleet_views"):
        monkeypatch.setattr(f"workflows.api.{module}.ring", lambda *keys: rung.extend(keys))
    return rung


class TestB015Timeouts:
    @pytest.mark.parametrize("bad", [0, -1, -5, None, 0.5, "60", 2147483648, 525601, True, [], 2**70, 60.0])
    @pytest.mark.parametrize("name", ["timeout_minutes", "timeoutMinutes"])
    def test_refused_and_named(self, bad, name, ops):
        body = problem(ops.call("PUT", PATH, {**RULE, name: bad}), 400, "invalid")
        assert [error["field"] for error in body["errors"]] == ["timeout_minutes"]
        body = problem(ops.call("PATCH", f"{PATH}/doc", {name: bad}), 400, "invalid")
        assert [error["field"] for error in body["errors"]] == ["timeout_minutes"]
        assert RoutingRule.objects.get().timeout_minutes == 60

    @pytest.mark.parametrize("good", [1, 525600])
    def test_taken(self, good, ops):
        assert ops.call("PUT", PATH, {**RULE, "timeout_minutes": good}).json()["timeout_minutes"] == good


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("workflow_type", ""),
        ("workflow_type", "a/b"),
        ("workflow_type", " a"),
        ("workflow_type", "x" * 101),
        ("agent_id", None),
        ("agent_id", ""),
        ("priority", 2**31),
        ("priority", "1"),
        ("max_concurrent", -1),
        ("max_concurrent", 1_000_001),
        ("max_concurrent", None),
        ("max_attempts", 0),
        ("max_attempts", 1001),
        ("active", "yes"),
        ("active", None),
        ("inactive_reason", "x" * 501),
    ],
)
def test_bad_fields(field, bad, ops):
    body = problem(ops.call("PUT", PATH, {**RULE, field: bad}), 400, "invalid")
    assert body["errors"][0]["field"] == field


def test_reason_of_an_active_rule(ops):
    body = problem(ops.call("PUT", PATH, {**RULE, "inactive_reason": "why"}), 400, "invalid")
    assert body["errors"][0]["field"] == "inactive_reason"


def test_life_of_a_rule(ops, rings):
    made = ops.call("PUT", PATH, {**RULE, "priority": 5, "max_concurrent": 0, "max_attempts": 7})
    assert (made.status_code, made["ETag"]) == (200, '"1"')
    assert made.json()["warnings"] == []
    edited = ops.call("PUT", PATH, {**RULE, "agent_id": "ghost"})
    row = edited.json()
    assert (row["priority"], row["max_attempts"], row["max_concurrent"]) == (5, 7, 0)  # what isn't given is kept
    assert (edited["ETag"], row["version"]) == ('"2"', 2)
    assert row["warnings"][0]["code"] == "unknown_agent"
    assert [rule["workflow_type"] for rule in ops.get(PATH).json()["routes"]] == ["new", "doc"]
    patched = ops.call(
        "PATCH", f"{PATH}/new", {"active": False, "inactive_reason": "holiday", "workflow_type": "other"}
    )
    assert (patched.json()["inactive_reason"], patched.json()["workflow_type"]) == ("holiday", "new")
    assert ops.get(f"{PATH}/new")["ETag"] == '"3"'
    assert ops.call("DELETE", f"{PATH}/new").json() == {"deleted": True}
    problem(ops.call("DELETE", f"{PATH}/new"), 404, "not_found")
    assert rings == ["type:new"] * 4


class TestIfMatch:
    @pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
    @pytest.mark.parametrize("tag", ['"2"', "0", '"x"', "", '"99999999999999"', '"\x00"'])
    def test_stale(self, method, tag, ops):
        path = PATH if method == "PUT" else f"{PATH}/doc"
        problem(
            ops.call(method, path, {"workflow_type": "doc", "agent_id": "a2"}, If_Match=tag), 412, "precondition_failed"
        )
        assert RoutingRule.objects.get().agent_id == "a1"

    @pytest.mark.parametrize("tag", ['"1"', "1", 'W/"1"', '"7", "1"', "*"])
    def test_current(self, tag, ops):
        assert ops.call("PATCH", f"{PATH}/doc", {"priority": 3}, If_Match=tag).json()["priority"] == 3

    @pytest.mark.parametrize("tag", ['"1"', "*"])
    def test_what_is_not_there_matches_nothing(self, tag, ops):
        problem(ops.call("PUT", PATH, RULE, If_Match=tag), 412, "precondition_failed")


class TestSwitching:
    def test_a_rule_that_is_switched_on_again_loses_its_reason(self, ops):
        for call, path in (("PUT", PATH), ("PATCH", f"{PATH}/new")):
            off = ops.call("PUT", PATH, {**RULE, "active": False, "inactive_reason": "broken"})
            assert off.json()["inactive_reason"] == "broken"
            on = ops.call(call, path, {**RULE, "active": True})
            assert (on.status_code, on.json()["active"], on.json()["inactive_reason"]) == (200, True, "")

    def test_the_reason_of_an_inactive_rule_can_be_put_alone(self, ops):
        ops.call("PUT", PATH, {**RULE, "active": False, "inactive_reason": "broken"})
        answer = ops.call("PUT", PATH, {**RULE, "inactive_reason": "still broken"})
        assert (answer.status_code, answer.json()["inactive_reason"]) == (200, "still broken")


class TestWhoMayEdit:
    @pytest.mark.parametrize("agent_id", ["a1", "main"])
    def test_operators_only(self, agent_id, route):
        api = Api(agent_id)
        assert api.get(PATH).status_code == 200
        problem(api.call("PUT", PATH, RULE), 403, "forbidden")
        problem(api.call("PATCH", f"{PATH}/doc", {}), 403)
        problem(api.call("DELETE", f"{PATH}/doc"), 403)
        problem(api.post("agents", {"agent_id": "x"}), 403)
        problem(api.call("PATCH", f"agents/{agent_id}", {"role": "operator"}), 403)
        problem(api.post("departments", {"department_id": "x", "name": "X"}), 403)


class TestAgents:
    def test_life_of_an_agent(self, ops, rings):
        DepartmentFactory(department_id="press")
        body = {
            "agentId": "new",
            "display_name": "New",
            "role": "pipeline",
            "capabilities": ["repair"],
            "department_id": "press",
            "max_concurrent": 2,
        }
        made = ops.post("agents", body)
        assert (made.status_code, made["ETag"]) == (201, '"1"')
        assert made.json()["capabilities"] == ["repair"]
        problem(ops.post("agents", body), 409, "already_exists")
        paused = ops.call("PATCH", "agents/new", {"active": False, "reason": "on fire"}).json()
        assert (paused["active"], paused["inactive_reason"], paused["version"]) == (False, "on fire", 2)
        back = ops.call("PATCH", "agents/new", {"active": True, "max_concurrent": None}).json()
        assert (back["active"], back["inactive_reason"], back["max_concurrent"]) == (True, "", None)
        problem(ops.call("PATCH", "agents/new", {"active": False}, If_Match='"1"'), 412)
        assert rings == ["agent:new"] * 3
        assert ops.get("agents/new").json()["last_seen_at"] is None
        assert ops.get("agents/ops").json()["last_seen_at"] is not None

    @pytest.mark.parametrize(
        ("field", "bad"),
        [
            ("agent_id", ""),
            ("agent_id", "a b"),
            ("agent_id", "-x"),
            ("role", "king"),
            ("capabilities", "repair"),
            ("capabilities", [1]),
            ("capabilities", ["x" * 101]),
            ("capabilities", ["x"] * 101),
            ("department_id", "nowhere"),
            ("max_concurrent", -1),
            ("max_concurrent", "3"),
            ("active", 0),
            ("display_name", "x" * 201),
        ],
    )
    def test_bad_fields(self, field, bad, ops):
        body = problem(ops.post("agents", {"agent_id": "new", field: bad}), 400, "invalid")
        assert body["errors"][0]["field"].startswith(field)
        assert not Agent.objects.filter(pk="new").exists()

    def test_departments(self, ops):
        body = {"department_id": "press", "name": "Press"}
        assert ops.post("departments", body).status_code == 201
        problem(ops.post("departments", body), 409, "already_exists")
        assert [found["name"] for found in ops.get("departments").json()["departments"]] == ["Press"]


def test_edits_show_in_the_runs_at_once(ops):
    run = make_run("queued")
    RoutingRuleFactory(workflow_type="other")
    ops.call("PATCH", f"{PATH}/doc", {"agent_id": "a2", "timeout_minutes": 5, "priority": 9})
    shown = ops.get(f"workflow-runs/{run.pk}").json()
    assert (shown["target_agent_id"], shown["timeout_minutes"], shown["routing_priority"]) == ("a2", 5, 9)
