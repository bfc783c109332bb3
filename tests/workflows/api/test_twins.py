"""camelCase twins both ways, and a client that knows nothing else."""

from __future__ import annotations

import json

import pytest

from tests.factories import make_run
from tests.workflows.api.test_conventions import problem
from workflows.api import twins


def spellings(shown):
    """The keys that have no twin beside them, of those that should have one."""
    return {key for key in shown if "_" in key and twins.camel(key) not in shown}


PAYLOAD = {"snake_key": 1, "camelKey": {"inner_key": [{"deep_key": 2}]}}


@pytest.mark.parametrize("path", ["workflow-runs", "workflow-runs/pending", "workflow-runs/{run}"])
def test_runs_have_both_spellings_and_payloads_only_their_own(path, ops):
    run = make_run("dispatched", input_payload=PAYLOAD, output_summary=PAYLOAD)
    answer = ops.get(path.format(run=run.pk)).json()
    shown = answer["runs"][0] if "runs" in answer else answer
    assert spellings(shown) == set()
    assert shown["inputPayload"] == shown["input_payload"] == PAYLOAD
    assert shown["outputSummary"] == PAYLOAD
    assert shown["workflowType"] == shown["workflow_type"] == "doc"
    assert shown["holdReason"] is None
    for event in answer.get("events", []):
        assert event["toStatus"] == event["to_status"]


def test_details_of_the_timeline_have_their_own_keys_only(a1):
    run = make_run("dispatched")
    a1.run(run, "claim", {"sessionId": "s1"})
    event = a1.get(f"workflow-runs/{run.pk}").json()["events"][-1]
    assert event["detail"] == {"lease_no": 1, "session_id": "s1"}


def test_both_and_different(a1):
    run = make_run("dispatched")
    body = problem(a1.run(run, "claim", {"sessionId": "s1", "session_id": "s2"}), 400, "invalid")
    assert body["errors"][0]["field"] == "session_id"
    assert a1.run(run, "claim", {"sessionId": "s1", "session_id": "s1"}).status_code == 200
    problem(a1.get("workflow-runs/pending?agentId=a1&agent_id=a2"), 400, "invalid")


def test_switched_off(settings, a1):
    settings.API_CAMEL_CASE_TWINS = False
    run = make_run("dispatched")
    problem(a1.get("workflow-runs/pending?agentId=a1"), 400, "invalid")
    body = problem(a1.run(run, "claim", {"sessionId": "s1"}), 400, "invalid")
    assert body["errors"][0]["field"] == "session_id"
    shown = a1.run(run, "claim", {"session_id": "s1"}).json()
    assert not [key for key in shown if key != key.lower()]


def test_a_client_that_knows_camel_case_only_and_no_token(settings, route, client):
    settings.API_ANONYMOUS_LOOPBACK = True

    def call(method, path, body=None):
        answer = getattr(client, method)(f"/api/workflow-runs{path}", json.dumps(body), content_type="application/json")
        assert answer.status_code in (200, 201), answer.content
        return {key: value for key, value in answer.json().items() if "_" not in key}

    run = make_run("dispatched", input_payload={"n": 1})
    answer = client.get("/api/workflow-runs/pending?agentId=a1&limit=5").json()
    (waiting,) = answer["runs"]
    assert (waiting["workflowType"], waiting["targetAgentId"], waiting["inputPayload"]) == ("doc", "a1", {"n": 1})
    claimed = call("post", f"/{run.pk}/claim", {"sessionId": "js-1", "agentId": "a1"})
    assert (claimed["status"], claimed["claimSessionId"], claimed["leaseNo"]) == ("claimed", "js-1", 1)
    beat = call("post", f"/{run.pk}/heartbeat", {"sessionId": "js-1", "leaseNo": 1, "usage": {"inputTokens": 3}})
    assert (beat["status"], beat["directive"], beat["usageRecorded"]) == ("running", "continue", False)
    assert beat["heartbeatIntervalSeconds"] == 60
    done = call("post", f"/{run.pk}/complete", {"sessionId": "js-1", "outputSummary": {"myKey": 1, "my_key": 2}})
    assert (done["status"], done["outputSummary"]) == ("completed", {"myKey": 1, "my_key": 2})
    figures = client.get("/api/workflow-runs/dispatcher/stats").json()
    assert (figures["completedCount"], figures["pendingCount"], figures["dispatchCount"]) == (1, 0, 1)
    assert spellings(figures) == set()
