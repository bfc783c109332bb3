"""Calls that come at once, on real connections."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import pytest
from django.test import Client

from tests import invariants
from tests.concurrently import together
from tests.factories import AgentFactory, RoutingRuleFactory, make_run
from tests.workflows.api.conftest import Api
from workflows.models import RunEvent, RunLease, WorkflowRun

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def promises_hold(transactional_db):
    AgentFactory(agent_id="a1")
    RoutingRuleFactory(max_concurrent=1000)
    yield
    invariants.check()


def call(api, path, body, method="POST", **headers):
    answer = Client().generic(
        method, f"/api/{path}", json.dumps(body), content_type="application/json", headers={**api.headers, **headers}
    )
    return answer.status_code, answer.json()


def test_of_twenty_claims_one_wins():
    api = Api("a1")
    for _ in range(5):
        run = make_run("dispatched")
        path = f"workflow-runs/{run.pk}/claim"
        answers = together(*(partial(call, api, path, {"session_id": f"s{n}"}) for n in range(20)))
        assert Counter(status for status, _ in answers) == {200: 1, 409: 19}
        assert {body["code"] for status, body in answers if status == 409} == {"not_claimable"}
        assert RunLease.objects.filter(run=run).count() == 1


def test_twenty_claims_of_one_session_are_one_claim():
    api = Api("a1")
    run = make_run("dispatched")
    path = f"workflow-runs/{run.pk}/claim"
    answers = together(*(partial(call, api, path, {"session_id": "s1"}) for _ in range(20)))
    assert {(status, body.get("lease_no")) for status, body in answers} == {(200, 1)}
    assert RunEvent.objects.filter(run=run, verb="claim").count() == 1


def test_the_same_complete_at_once_is_one_end():
    api = Api("a1")
    run = make_run("running")
    body = {"session_id": "s1", "output_summary": {"v": 1}}
    answers = together(*(partial(call, api, f"workflow-runs/{run.pk}/complete", body) for _ in range(10)))
    assert {status for status, _ in answers} == {200}
    assert len({json.dumps(found, sort_keys=True) for _, found in answers}) == 1


def test_b054_ten_creates_with_one_key_are_one_run():
    api = Api("a1")
    for n in range(5):
        body = {"workflow_type": "doc", "input_payload": {"n": n}}
        create = partial(call, api, "workflow-runs", body, **{"Idempotency-Key": f"K{n}"})
        answers = together(*[create] * 10)
        assert Counter(status for status, _ in answers) == {201: 1, 200: 9}
        assert len({found["id"] for _, found in answers}) == 1
    assert WorkflowRun.objects.count() == 5


def test_rules_and_agents_made_at_once():
    ops = Api("ops")
    rule = {"workflow_type": "new", "agent_id": "a1"}
    put = together(*(partial(call, ops, "workflow-routing", {**rule, "priority": n}, "PUT") for n in range(8)))
    assert Counter(status for status, _ in put) == {200: 8}
    assert sorted(body["version"] for _, body in put) == list(range(1, 9))
    agents = together(*[partial(call, ops, "agents", {"agent_id": "new"})] * 8)
    assert Counter(status for status, _ in agents) == {201: 1, 409: 7}


def test_of_eight_edits_of_one_version_one_wins():
    ops = Api("ops")
    edits = [
        partial(call, ops, "workflow-routing/doc", {"priority": n}, "PATCH", **{"If-Match": '"1"'}) for n in range(8)
    ]
    assert Counter(status for status, _ in together(*edits)) == {200: 1, 412: 7}
