"""What holders report beside heartbeats: sessions, steps, artifacts, gateway sessions; and the detail's tag."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher_project import clock
from tests import invariants
from tests.factories import make_run
from tests.workflows.api.test_conventions import problem

STEP = {"session_id": "s1", "step_name": "build"}


class TestSessionHeartbeat:
    def test_every_run_of_the_session_and_no_other(self, a1, a2):
        before = clock.now() - timedelta(minutes=5)
        mine = [make_run(state, now=before) for state in ("claimed", "running", "paused")]
        make_run("running", session="s2", now=before)
        make_run("running", agent="a2", now=before)
        make_run("completed", now=before)
        answer = a1.post("sessions/s1/heartbeat")
        body = answer.json()
        assert (answer.status_code, body["updated_runs"], body["updatedRuns"]) == (200, 3, 3)
        found = {run["id"]: run for run in body["runs"]}
        assert set(found) == {str(run.pk) for run in mine}
        assert [found[str(run.pk)]["status"] for run in mine] == ["running", "running", "paused"]
        assert [found[str(run.pk)]["directive"] for run in mine] == ["continue", "continue", "pause"]
        assert all(run["lease_expires_at"] > run["last_heartbeat_at"] > before.isoformat() for run in body["runs"])
        assert a2.post("sessions/s1/heartbeat").json()["updated_runs"] == 1
        invariants.check(slots=False)

    @pytest.mark.parametrize("session", ["a:b/c", "x y", "%C3%BC", "unknown"])
    def test_any_session_name(self, session, a1):
        assert a1.post(f"sessions/{session}/heartbeat").json() == {"updated_runs": 0, "updatedRuns": 0, "runs": []}

    def test_a_name_with_a_slash(self, a1):
        make_run("running", session="main/sub")
        assert a1.post("sessions/main%2Fsub/heartbeat").json()["updated_runs"] == 1

    @pytest.mark.parametrize("session", ["%00", "x" * 201])
    def test_no_session_name(self, session, a1):
        problem(a1.post(f"sessions/{session}/heartbeat"), 400, "invalid")

    def test_large_payloads_stay_out(self, a1):
        make_run("running", input_payload={"x": "x" * 5000})
        (run,) = a1.post("sessions/s1/heartbeat").json()["runs"]
        assert (run["input_payload"], run["input_payload_truncated"]) == ({}, True)


class TestStep:
    def test_sets_the_current_step_and_shows_in_the_detail(self, a1):
        run = make_run("running")
        answer = a1.run(run, "step", {**STEP, "status": "started", "output": {"n": 1.10}})
        assert (answer.status_code, answer.json()["current_step"]) == (200, "build")
        assert a1.run(run, "step", {**STEP, "lease_no": 1, "status": "done"}).status_code == 200
        assert a1.run(run, "step", {**STEP, "stepName": "build", "output": [None]}).status_code == 200
        a1.run(run, "step", {"session_id": "s1", "stepName": "deploy"})
        steps = a1.get(f"workflow-runs/{run.pk}").json()["steps"]
        assert [(step["step_name"], step["status"], step["output"]) for step in steps] == [
            ("build", None, [None]),
            ("deploy", None, None),
        ]
        assert steps[0]["firstAt"] < steps[0]["last_at"]

    @pytest.mark.parametrize(
        "bad",
        [
            {"step_name": ""},
            {"step_name": "x" * 201},
            {"step_name": 1},
            {"step_name": None},
            {"status": "x" * 51},
            {"status": ""},
            {"session_id": None},
            {"lease_no": "1"},
        ],
        ids=str,
    )
    def test_bad_input(self, bad, a1):
        body = problem(a1.run(make_run("running"), "step", {**STEP, **bad}), 400, "invalid")
        assert {error["field"] for error in body["errors"]} == set(bad)

    @pytest.mark.parametrize("verb", ["step", "artifacts"])
    def test_under_the_fence(self, verb, a1, a2):
        run = make_run("running")
        body = {**STEP, "uri": "s3://b/k"}
        problem(a1.run(run, verb, {**body, "session_id": "s2"}), 409, "lease_lost")
        problem(a1.run(run, verb, {**body, "lease_no": 2}), 409, "lease_lost")
        problem(a2.run(run, verb, body), 409, "lease_lost")
        problem(a1.run(make_run("completed"), verb, body), 409, "run_ended")
        whole = a1.get(f"workflow-runs/{run.pk}").json()
        assert (whole["steps"], whole["artifacts"], whole["current_step"]) == ([], [], None)


class TestArtifacts:
    URI = {"session_id": "s1", "uri": "s3://bucket/key"}

    def test_made_listed_and_part_of_the_detail(self, a1, a2):
        run = make_run("running")
        more = {"artifact_type": "report", "label": "Report", "metadata": {"size": 1.10}}
        answer = a1.run(run, "artifacts", {**self.URI, **more})
        made = answer.json()
        assert answer.status_code == 201
        assert (made["uri"], made["artifactType"], made["metadata"]) == ("s3://bucket/key", "report", {"size": 1.1})
        assert b'"size":1.1' in answer.content.replace(b" ", b"")
        a1.run(run, "complete", {"session_id": "s1", "output_summary": {"page": "https://x.example/1"}})
        listed = a1.get(f"workflow-runs/{run.pk}/artifacts").json()
        assert [found["uri"] for found in listed["artifacts"]] == ["s3://bucket/key", "https://x.example/1"]
        assert listed["next"] is None
        assert a1.get(f"workflow-runs/{run.pk}").json()["artifacts"] == listed["artifacts"]
        problem(a2.get(f"workflow-runs/{run.pk}/artifacts"), 404, "run_not_found")

    def test_the_same_address_is_one_artifact(self, a1):
        run = make_run("running")
        first = a1.run(run, "artifacts", self.URI).json()
        again = a1.run(run, "artifacts", {**self.URI, "label": "Now with a name"}).json()
        assert (again["id"], again["label"], again["artifact_type"]) == (first["id"], "Now with a name", "url")

    def test_pages(self, a1):
        run = make_run("running")
        for n in range(5):
            a1.run(run, "artifacts", {**self.URI, "uri": f"file:///{n}"})
        seen, url = [], f"/api/workflow-runs/{run.pk}/artifacts?limit=2"
        while url:
            page = a1.client.get(url, headers=a1.headers).json()
            seen, url = seen + [found["uri"] for found in page["artifacts"]], page["next"]
        assert seen == [f"file:///{n}" for n in range(5)]

    @pytest.mark.parametrize(
        "uri", ["https://x.example/a?b#c", "file:///tmp/a b", "urn:x:1", "S3://b", "x" + ":" + "y" * 1998]
    )
    def test_any_scheme(self, uri, a1):
        assert a1.run(make_run("running"), "artifacts", {**self.URI, "uri": uri}).status_code == 201

    @pytest.mark.parametrize(
        "uri", ["", "/tmp/x", "x.example", "http:", "1x:y", "http://a\nb", "http://a\x7f", "x:" + "y" * 1999, 1, None]
    )
    def test_no_address(self, uri, a1):
        body = problem(a1.run(make_run("running"), "artifacts", {**self.URI, "uri": uri}), 400, "invalid")
        assert body["errors"][0]["field"] == "uri"

    @pytest.mark.parametrize("metadata", [[], "x", 1, True])
    def test_metadata_is_an_object(self, metadata, a1):
        problem(a1.run(make_run("running"), "artifacts", {**self.URI, "metadata": metadata}), 400, "invalid")


class TestGatewaySession:
    def test_bound_and_unbound_without_the_lease(self, a1, ops):
        run = make_run("running")
        bound = a1.run(run, "bind-session", {"session_id": "gw"}).json()
        names = ("gateway_session_id", "gateway_session_active", "claim_session_id", "lease_no", "status")
        assert [bound[name] for name in names] == ["gw", True, "s1", 1, "running"]
        other = a1.run(run, "unbind-session", {"session_id": "another"}).json()
        assert other["gateway_session_active"] is True
        unbound = ops.run(run, "unbind-session", {"sessionId": "gw"}).json()
        assert [unbound[name] for name in names] == ["gw", False, "s1", 1, "running"]

    @pytest.mark.parametrize("verb", ["bind-session", "unbind-session"])
    def test_for_the_holder_and_operators(self, verb, a2, ops):
        problem(a2.run(make_run("running"), verb, {"session_id": "gw"}), 409, "lease_lost")
        problem(ops.run(make_run("queued"), verb, {"session_id": "gw"}), 409, "lease_lost")
        problem(ops.run(make_run("failed"), verb, {"session_id": "gw"}), 409, "run_ended")
        problem(ops.run(make_run("running"), verb, {}), 400, "invalid")


class TestTag:
    def test_304_until_something_changes(self, a1, ops):
        run = make_run("running")
        path = f"workflow-runs/{run.pk}"
        tag = a1.get(path)["ETag"]
        assert tag.startswith('"1-')
        for header in (tag, f'"other", {tag}', "*"):
            answer = a1.get(path, if_none_match=header)
            assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", tag)
        for header in (f"W/{tag}", '"other"', "nonsense", ""):
            assert a1.get(path, if_none_match=header).status_code == 200
        for change in (
            lambda: a1.run(run, "heartbeat", {"session_id": "s1"}),
            lambda: a1.run(run, "step", STEP),
            lambda: a1.run(run, "artifacts", {"session_id": "s1", "uri": "s3://b"}),
            lambda: a1.run(run, "bind-session", {"session_id": "gw"}),
            lambda: ops.call("PATCH", path, {"operator_notes": "x"}),
            lambda: ops.call("PATCH", "workflow-routing/doc", {"max_concurrent": 7}),
            lambda: a1.run(run, "complete", {"session_id": "s1"}),
        ):
            assert change().status_code in (200, 201)
            answer = a1.get(path, if_none_match=tag)
            assert answer.status_code == 200
            tag = answer["ETag"]

    def test_what_holds_a_run_is_part_of_it(self, ops):
        run = make_run("queued")
        tag = ops.get(f"workflow-runs/{run.pk}")["ETag"]
        make_run("running")
        answer = ops.get(f"workflow-runs/{run.pk}", if_none_match=tag)
        assert (answer.status_code, answer.json()["hold_reason"]) == (200, "type_full")
