"""One run through its life over the API, in both spellings."""

from __future__ import annotations

from governance.actors import DISPATCHER
from workflows import lifecycle


def dispatch(run_id, agent_id="a1"):
    return lifecycle.dispatch([run_id], agent_id=agent_id, department_id=None, actor=DISPATCHER)


def test_a_run_goes_through_its_life(a1, ops):
    made = ops.post("workflow-runs", {"workflow_type": "doc", "input_payload": {"n": 1.10, "big": 2**70}})
    assert made.status_code == 201, made.content
    run = made.json()
    assert made["Location"] == f"/api/workflow-runs/{run['id']}"
    assert (run["status"], run["hold_reason"], run["target_agent_id"], run["workflowType"]) == (
        "queued",
        None,
        "a1",
        "doc",
    )
    assert (run["timeout_minutes"], run["max_concurrent"], run["max_retries"], run["retry_count"]) == (60, 1, 2, 0)
    dispatch(run["id"])
    (waiting,) = a1.get("workflow-runs/pending").json()["runs"]
    assert waiting["id"] == run["id"]
    claimed = a1.run(run["id"], "claim", {"session_id": "s1"}).json()
    assert (claimed["status"], claimed["lease_no"], claimed["claimed_by"]) == ("claimed", 1, "a1")
    assert a1.run(run["id"], "start", {"session_id": "s1", "lease_no": 1}).json()["status"] == "running"
    beat = a1.run(run["id"], "heartbeat", {"session_id": "s1", "progress": {"percent": 40, "message": "half"}}).json()
    assert beat["directive"] == "continue"
    assert beat["heartbeat_interval_seconds"] == 60
    assert beat["lease_expires_at"] > beat["last_heartbeat_at"]
    assert beat["progress"] == {"percent": 40, "message": "half"}
    assert beat["usage_recorded"] is False
    done = a1.run(run["id"], "complete", {"session_id": "s1", "output_summary": {"v": 1}}).json()
    assert (done["status"], done["output_summary"]) == ("completed", {"v": 1})
    whole = a1.get(f"workflow-runs/{run['id']}").json()
    assert [event["verb"] for event in whole["events"]] == ["create", "dispatch", "claim", "start", "complete"]
    assert [lease["end_verb"] for lease in whole["leases"]] == ["complete"]
    assert b'"n":1.1' in made.content.replace(b" ", b"")
    assert whole["created_at"].endswith("Z")
