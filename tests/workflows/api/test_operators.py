"""What operators do: edits, run-now, active, stuck, bulk; agents' tokens and departments."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher_project import clock
from governance.models import AgentToken
from tests import invariants
from tests.factories import AgentFactory, RoutingRuleFactory, RunLeaseFactory, make_run
from tests.workflows.api.conftest import Api
from tests.workflows.api.test_conventions import problem
from workflows import states
from workflows.api import bulk
from workflows.models import RunEvent, WorkflowRun

DAY = timedelta(days=1)


def ids(answer):
    assert answer.status_code == 200, answer.content
    return [run["id"] for run in answer.json()["runs"]]


def made(*runs):
    return [str(run.pk) for run in runs]


class TestEdit:
    @pytest.fixture
    def run(self, route):
        return make_run("queued")

    def edit(self, api, run, body, **headers):
        return api.call("PATCH", f"workflow-runs/{run.pk}", body, **headers)

    def test_the_six_fields(self, run, ops):
        later = (clock.now() + DAY).isoformat()
        body = {"priority": 5, "notBefore": later, "operator_notes": "é", "current_step": "x"}
        body |= {"gateway_session_id": "g", "gatewaySessionActive": True}
        shown = self.edit(ops, run, body).json()
        assert shown["not_before"] == later.replace("+00:00", "Z")
        assert shown["hold_reason"] == "not_before"
        assert {name: shown[name] for name in ("priority", "operator_notes", "current_step", "gateway_session_id")} == {
            "priority": 5, "operator_notes": "é", "current_step": "x", "gateway_session_id": "g",
        }  # fmt: skip
        assert shown["gateway_session_active"] is True
        names = ("not_before", "operator_notes", "current_step", "gateway_session_id")
        cleared = self.edit(ops, run, dict.fromkeys(names)).json()
        assert [cleared[name] for name in names] == [None] * 4
        assert cleared["priority"] == 5

    @pytest.mark.parametrize(
        "name",
        ["status", "claimedBy", "lease_no", "output_summary", "retry_count", "id", "timeout_minutes", "last_seq"],
    )
    def test_other_columns_are_refused(self, name, run, ops):
        body = problem(self.edit(ops, run, {"priority": 9, name: 1}), 400, "invalid")
        assert body["errors"][0]["message"] == "can't be edited"
        run.refresh_from_db()
        assert run.priority == 0

    def test_unknown_fields_are_ignored(self, run, ops):
        assert self.edit(ops, run, {"no_such": 1}).status_code == 200

    @pytest.mark.parametrize(
        "bad",
        [
            {"priority": None},
            {"priority": 2**31},
            {"priority": "1"},
            {"not_before": "tomorrow"},
            {"gateway_session_active": None},
            {"gateway_session_id": ""},
            {"operator_notes": "x" * 20_001},
            {"current_step": "x" * 201},
        ],
        ids=str,
    )
    def test_bad_values(self, bad, run, ops):
        body = problem(self.edit(ops, run, bad), 400, "invalid")
        assert [error["field"] for error in body["errors"]] == list(bad)

    def test_the_queues_fields_are_a_queued_runs(self, ops):
        run = make_run("running")
        problem(self.edit(ops, run, {"priority": 1}), 409, "wrong_state")
        assert self.edit(ops, run, {"operator_notes": "n"}).status_code == 200

    def test_if_match(self, run, ops):
        tag = ops.get(f"workflow-runs/{run.pk}")["ETag"]
        answer = self.edit(ops, run, {"priority": 1}, if_match=tag)
        assert answer.status_code == 200
        assert answer["ETag"] == ops.get(f"workflow-runs/{run.pk}")["ETag"] != tag
        for header in (tag, '"nonsense"', f"W/{answer['ETag']}", ""):
            body = problem(self.edit(ops, run, {"priority": 2}, if_match=header), 412, "precondition_failed")
            assert body["run"]["priority"] == 1
        assert self.edit(ops, run, {"priority": 3}, if_match=f'"x", {answer["ETag"]}').status_code == 200
        assert self.edit(ops, run, {"priority": 4}, if_match="*").status_code == 200

    def test_by_operators_and_orchestrators(self, run, a1, main):
        problem(self.edit(a1, run, {"priority": 1}), 403, "forbidden")
        assert self.edit(main, run, {"priority": 1}).status_code == 200


class TestRunNow:
    def test_clears_the_wait_and_nothing_else(self, ops):
        run = make_run("queued", not_before=clock.now() + DAY, dispatch_attempts=1)
        shown = ops.run(run, "run-now", {"reason": "please"}).json()
        assert (shown["not_before"], shown["hold_reason"], shown["dispatch_attempts"]) == (None, None, 1)
        make_run("running")
        assert ops.run(run, "run-now").json()["hold_reason"] == "type_full"

    @pytest.mark.parametrize("state", [state for state in states.STATES if state != "queued"])
    def test_needs_a_queued_run(self, state, ops):
        problem(ops.run(make_run(state), "run-now"), 409, "wrong_state")

    def test_needs_an_operator(self, a1):
        problem(a1.run(make_run("queued"), "run-now"), 403, "forbidden")


class TestActive:
    def test_what_holds_a_slot(self, ops, a2):
        runs = {state: make_run(state) for state in states.STATES}
        make_run("paused", claim_session_id=None, deadline_at=None, claimed_by=None, lease_no=0)
        found = ids(ops.get("workflow-runs/active"))
        assert found == made(*[runs[state] for state in ("paused", "running", "claimed", "dispatched")])
        assert ids(a2.get("workflow-runs/active")) == []

    def test_pages(self, ops):
        runs = [make_run("running") for _ in range(5)]
        page = ops.get("workflow-runs/active?limit=3").json()
        rest = ops.client.get(page["next"], headers=ops.headers).json()
        assert [run["id"] for run in page["runs"] + rest["runs"]] == made(*reversed(runs))


class TestStuck:
    def reasons(self, api):
        found = api.get("workflow-runs/stuck").json()["runs"]
        return {run["id"]: [reason["code"] for reason in run["reasons"]] for run in found}

    def test_each_reason(self, ops):
        now = clock.now()
        RoutingRuleFactory(workflow_type="many", max_attempts=10)
        silent = make_run("claimed", now=now - timedelta(minutes=6))
        overdue = make_run("running", deadline_at=now - timedelta(minutes=1))
        unroutable = make_run("queued", workflow_type="nobody")
        tired = make_run("queued", dispatched_at=now, dispatch_attempts=2)
        last = make_run("running", dispatch_attempts=3, workflow_type="own", max_attempts=4)
        returned = make_run("queued", dispatched_at=now, lease_no=3, claimed_by="a1", claimed_at=now)
        for n in (1, 2):
            RunLeaseFactory(run=returned, lease_no=n, ended_at=now, end_verb="release")
        returned.leases.filter(lease_no=3).update(ended_at=now, end_verb="release")
        held = make_run("queued", now=now - DAY - timedelta(hours=2))
        waiting = make_run("waiting_for_approval", now=now - 2 * DAY)
        assert self.reasons(ops) == {
            str(silent.pk): ["silent"],
            str(overdue.pk): ["overdue"],
            str(unroutable.pk): ["no_route"],
            str(tired.pk): ["attempts_nearly_used_up"],
            str(last.pk): ["attempts_nearly_used_up"],
            str(returned.pk): ["given_back"],
            str(held.pk): ["held"],
            str(waiting.pk): ["held"],
        }

    def test_what_is_well(self, ops):
        now = clock.now()
        RoutingRuleFactory(workflow_type="many", max_attempts=10, max_concurrent=100)
        for state in states.STATES:
            make_run(state, workflow_type="many")
        make_run("running", workflow_type="many", dispatch_attempts=2)
        make_run("queued", workflow_type="many", now=now - 2 * DAY)  # its turn comes
        make_run("queued", workflow_type="many", not_before=now + DAY, now=now - 2 * DAY)
        make_run("queued", workflow_type="nobody", owner_agent_id="a1")
        make_run("failed", dispatch_attempts=3, now=now - 2 * DAY)
        assert self.reasons(ops) == {}

    def test_oldest_first_with_several_reasons_and_a_limit(self, ops):
        now = clock.now()
        both = make_run("running", now=now - timedelta(hours=2), dispatch_attempts=2)
        second = make_run("running", now=now - timedelta(hours=2) + timedelta(seconds=1))
        found = ops.get("workflow-runs/stuck?limit=1").json()
        assert ([run["id"] for run in found["runs"]], found["more"]) == (made(both), True)
        codes = [reason["code"] for reason in found["runs"][0]["reasons"]]
        assert codes == ["silent", "overdue", "attempts_nearly_used_up"]
        assert found["runs"][0]["reasons"][0]["detail"] == "Nothing was heard from 'a1' for 2 h."
        assert ids(ops.get("workflow-runs/stuck")) == made(both, second)

    def test_shows_an_agent_its_own(self, a1, a2):
        run = make_run("running", now=clock.now() - timedelta(hours=2))
        assert list(self.reasons(a1)) == made(run)
        assert self.reasons(a2) == {}

    def test_in_a_fixed_number_of_statements(self, ops, django_assert_max_num_queries):
        for n in range(30):
            make_run("running", now=clock.now() - timedelta(hours=2), workflow_type=f"t{n}")
            make_run("queued", workflow_type=f"q{n}")
        with django_assert_max_num_queries(20):
            assert len(self.reasons(ops)) == 50


class TestBulk:
    def call(self, api, action, chosen, **more):
        return api.post("workflow-runs/bulk", {"action": action, "filter": chosen, **more})

    def test_cancel(self, ops):
        open_runs = [make_run(state) for state in states.OPEN]
        done = make_run("completed")
        other = make_run("queued", workflow_type="other")
        answer = self.call(ops, "cancel", {"workflowType": "doc"}, reason="wrong input")
        counts = {"matched": len(open_runs), "changed": len(open_runs), "refused": {}, "more": False}
        assert (answer.status_code, answer.json()) == (200, counts)
        assert set(WorkflowRun.objects.filter(status="cancelled")) == set(open_runs)
        assert set(WorkflowRun.objects.exclude(status="cancelled")) == {done, other}
        event = RunEvent.objects.filter(verb="cancel").first()
        assert (event.actor, event.reason) == ("agent:ops", "wrong input")
        invariants.check(slots=False)

    def test_run_now(self, ops):
        run = make_run("queued", not_before=clock.now() + DAY)
        make_run("queued")
        assert self.call(ops, "run-now", {"status": ["queued"]}).json()["changed"] == 1
        run.refresh_from_db()
        assert run.not_before is None

    def test_bounded_and_to_be_repeated(self, ops, monkeypatch):
        monkeypatch.setattr(bulk, "MAX_RUNS", 2)
        for _ in range(3):
            make_run("queued")
        first, second = (self.call(ops, "cancel", {"status": "queued"}).json() for _ in range(2))
        assert (first["matched"], first["changed"], first["more"]) == (2, 2, True)
        assert (second["matched"], second["changed"], second["more"]) == (1, 1, False)

    def test_one_that_refuses_stops_no_other(self, ops, monkeypatch):
        runs = [make_run("queued", not_before=clock.now() + DAY) for _ in range(3)]
        monkeypatch.setitem(bulk._APPLIES, "run-now", lambda found: found)  # as if it moved on right after the look
        ops.run(runs[1], "cancel")
        answer = self.call(ops, "run-now", {"workflow_type": "doc"}).json()
        assert answer == {"matched": 3, "changed": 2, "refused": {"wrong_state": 1}, "more": False}

    @pytest.mark.parametrize(
        ("chosen", "field"),
        [
            ({}, "filter"),
            ([], "filter"),
            ("queued", "filter"),
            (None, "filter"),
            ({"bogus": "x"}, "filter.bogus"),
            ({"status": "bogus"}, "filter.status"),
            ({"status": []}, "filter.status"),
            ({"status": [1]}, "filter.status"),
            ({"workflow_type": 1}, "filter.workflow_type"),
            ({"workflow_type": ""}, "filter.workflow_type"),
            ({"workflow_type": ["a", "b"]}, "filter.workflow_type"),
            ({"workflow_type": None}, "filter.workflow_type"),
            ({"created_before": "yesterday"}, "filter.created_before"),
            ({"search": "x" * 201}, "filter.search"),
        ],
        ids=str,
    )
    def test_bad_filters_change_nothing(self, chosen, field, ops):
        run = make_run("queued")
        body = problem(self.call(ops, "cancel", chosen), 400, "invalid")
        assert body["errors"][0]["field"] == field
        run.refresh_from_db()
        assert run.status == "queued"

    @pytest.mark.parametrize("action", ["complete", "", None, 1, "delete"])
    def test_unknown_actions(self, action, ops):
        problem(self.call(ops, action, {"status": "queued"}), 400, "invalid")

    def test_operators_only(self, a1, main):
        for api in (a1, main):
            problem(self.call(api, "cancel", {"status": "queued"}), 403, "forbidden")


class TestTokens:
    PATH = "agents/a1/tokens"

    def test_a_rotation_with_overlap(self, ops, a1):
        (old,) = AgentToken.objects.filter(agent_id="a1")
        made = ops.post(self.PATH, {"days": 30})
        body = made.json()
        assert (made.status_code, body["agent_id"], body["created_by"], body["state"]) == (
            201,
            "a1",
            "agent:ops",
            "active",
        )
        new = Api(None)
        new.headers = {"Authorization": f"Bearer {body['token']}"}
        for api in (a1, new):
            assert api.get("workflow-runs").status_code == 200
        gone = ops.call("DELETE", f"{self.PATH}/{old.key}").json()
        assert (gone["state"], gone["key"]) == ("revoked", old.key)
        assert ops.call("DELETE", f"{self.PATH}/{old.key}").json() == gone
        problem(a1.get("workflow-runs"), 401, "token_invalid")
        assert new.get("workflow-runs").status_code == 200
        listed = ops.get(self.PATH).json()["tokens"]
        assert [token["state"] for token in listed] == ["revoked", "active"]
        assert all(token["last_used_at"] for token in listed)
        assert "digest" not in str(listed)
        assert not any("token" in token for token in listed)

    def test_without_days_it_never_expires(self, ops):
        assert ops.post(self.PATH).json()["expires_at"] is None

    def test_expired_tokens_say_so(self, ops, a1):
        AgentToken.objects.filter(agent_id="a1").update(expires_at=clock.now())
        assert [token["state"] for token in ops.get(self.PATH).json()["tokens"]] == ["expired"]
        problem(a1.get("workflow-runs"), 401, "token_expired")

    @pytest.mark.parametrize("days", [0, -1, 3651, "1", 1.5, True, 2**63])
    def test_bad_days(self, days, ops):
        problem(ops.post(self.PATH, {"days": days}), 400, "invalid")
        assert not AgentToken.objects.filter(agent_id="a1").exists()

    def test_unknown_agents_and_tokens(self, ops, a1, a2):
        (other,) = AgentToken.objects.filter(agent_id="a2")
        problem(ops.get("agents/nobody/tokens"), 404, "not_found")
        problem(ops.post("agents/nobody/tokens"), 404, "not_found")
        for key in ("nothing", "%00", "x" * 200, other.key):
            problem(ops.call("DELETE", f"{self.PATH}/{key}"), 404, "not_found")
        assert a2.get("workflow-runs").status_code == 200

    def test_operators_only(self, a1, main):
        for api in (a1, main):
            for method, path in (("GET", self.PATH), ("POST", self.PATH), ("DELETE", f"{self.PATH}/x")):
                problem(api.call(method, path, {}), 403)

    def test_pages(self, ops):
        for _ in range(3):
            AgentToken.issue("a1")
        first = ops.get(f"{self.PATH}?limit=2").json()
        rest = ops.client.get(first["next"], headers=ops.headers).json()
        assert [len(first["tokens"]), len(rest["tokens"])] == [2, 1]


class TestDepartments:
    def test_renamed(self, ops, a1):
        ops.post("departments", {"department_id": "d1", "name": "Old"})
        tag = a1.get("departments/d1")["ETag"]
        answer = ops.call("PATCH", "departments/d1", {"name": "New"}, if_match=tag)
        assert (answer.json()["name"], answer.json()["version"], answer["ETag"]) == ("New", 2, '"2"')
        problem(ops.call("PATCH", "departments/d1", {"name": "Newer"}, if_match=tag), 412, "precondition_failed")
        problem(ops.call("PATCH", "departments/d1", {"name": ""}), 400, "invalid")
        problem(ops.call("PATCH", "departments/d2", {"name": "x"}), 404, "not_found")
        problem(a1.call("PATCH", "departments/d1", {"name": "x"}), 403)
        AgentFactory(agent_id="a1")
        assert ops.call("PATCH", "agents/a1", {"department_id": "d1"}).json()["department_id"] == "d1"
