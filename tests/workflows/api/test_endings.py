"""complete, fail, release, cancel over HTTP: the calls that end a lease or a run."""

from __future__ import annotations

import pytest

from tests.factories import make_run
from tests.workflows.api.test_conventions import problem
from tests.workflows.api.test_verbs import S1, S2, fresh, verbs_of
from workflows.models import RunLease


class TestComplete:
    @pytest.mark.parametrize(
        ("body", "output"),
        [
            ({}, {}),
            ({"output_summary": {"v": "NaN"}}, {"v": "NaN"}),
            ({"outputSummary": {"v": 1}}, {"v": 1}),
            ({"summary": "done"}, {"summary": "done"}),
            ({"summary": {"v": 1}}, {"v": 1}),
            ({"output_summary": {"v": 1}, "summary": "done"}, {"v": 1, "summary": "done"}),
            ({"output_summary": {"summary": "mine"}, "summary": "other"}, {"summary": "mine"}),
            ({"url": "https://a"}, {"url": "https://a"}),
            (
                {"prUrl": "https://a", "preview_urls": ["https://b"], "url": ""},
                {"pr_url": "https://a", "preview_urls": ["https://b"]},
            ),
            ({"output_summary": {"url": "https://a"}, "url": "https://b"}, {"url": "https://a"}),
            ({"curl": "x", "url": 5, "agent_id": "x"}, {}),
            ({"output_summary": {"error": ""}}, {"error": ""}),
            ({"output_summary": {"error": None}, "error": "  "}, {"error": None}),
        ],
        ids=str,
    )
    def test_output(self, body, output, a1):
        run = make_run("running")
        shown = a1.run(run, "complete", {**S1, **body}).json()
        assert (shown["status"], shown["output_summary"]) == ("completed", output)

    @pytest.mark.parametrize(
        ("body", "error"),
        [
            ({"error": "boom"}, "boom"),
            ({"output_summary": {"error": "boom"}}, "boom"),
            ({"output_summary": {"error": {"code": 1.50}}}, '{"code":1.5}'),
            ({"summary": {"error": "boom"}}, "boom"),
        ],
        ids=str,
    )
    def test_an_error_fails_the_run_for_good(self, body, error, a1):
        run = make_run("running")
        for _ in range(2):
            shown = a1.run(run, "complete", {**S1, **body}).json()
            assert (shown["status"], shown["last_error"]) == ("failed", error)
        assert verbs_of(run) == ["create", "fail"]

    def test_an_output_with_an_error_is_kept_with_the_failed_run(self, a1):
        run = make_run("running")
        output = {"error": "half done", "report_url": "https://example.com/report", "rows": 3}
        body = {**S1, "output_summary": output}
        shown = a1.run(run, "complete", body).json()
        assert (shown["status"], shown["last_error"], shown["output_summary"]) == ("failed", "half done", output)
        assert a1.run(run, "complete", body).json() == shown
        detail = a1.get(f"workflow-runs/{run.pk}").json()
        assert [artifact["uri"] for artifact in detail["artifacts"]] == ["https://example.com/report"]

    @pytest.mark.parametrize(
        "bad",
        [
            {"output_summary": "text"},
            {"output_summary": []},
            {"summary": 5},
            {"error": {"code": 1}},
            {"usage": {"input_tokens": 1}, "input_tokens": 1},
            {"input_tokens": -1},
            {"cost_estimate": "NaN"},
            {"outputSummary": {"a": 1}, "output_summary": {"a": 2}},
        ],
        ids=str,
    )
    def test_bad_fields(self, bad, a1):
        run = make_run("running")
        problem(a1.run(run, "complete", {**S1, **bad}), 400, "invalid")
        assert fresh(run).status == "running"

    def test_without_a_session(self, a1, main, ops):
        for api, state in ((main, "running"), (ops, "claimed"), (ops, "paused")):
            run = make_run(state)
            problem(a1.run(run, "complete", {}), 400, "invalid")
            assert api.run(run, "complete", {"output_summary": {"by": "word"}}).json()["status"] == "completed"
        problem(ops.run(make_run("queued"), "complete", {}), 409, "wrong_state")

    def test_usage_at_the_top_level(self, a1):
        run = make_run("running")
        body = {**S1, "modelId": "m", "input_tokens": 5, "cost_estimate": "0.10"}
        assert a1.run(run, "complete", body).json()["usage_recorded"] is False
        assert a1.run(run, "complete", body).status_code == 200
        problem(a1.run(run, "complete", {**body, "input_tokens": 6}), 409, "run_ended")

    def test_b055_a_repeat_is_answered_as_the_first_time(self, a1):
        run = make_run("running")
        body = {**S1, "output_summary": {"v": 1.0}}
        first, again = a1.run(run, "complete", body), a1.run(run, "complete", body)
        assert (first.status_code, again.status_code) == (200, 200)
        assert first.json() == again.json()
        problem(a1.run(run, "fail", {**S1, "error": "fallback"}), 409, "run_ended")
        problem(a1.run(run, "complete", {**S1, "output_summary": {"v": 2}}), 409, "run_ended")
        assert (fresh(run).status, fresh(run).output_summary) == ("completed", {"v": 1.0})
        assert verbs_of(run) == ["create", "complete"]


class TestFailAndRelease:
    def test_fail(self, a1):
        run = make_run("running")
        body = {**S1, "error": "no disk", "retryable": True, "retry_after_seconds": 90}
        shown = a1.run(run, "fail", body).json()
        assert (shown["status"], shown["hold_reason"], shown["last_error"]) == ("queued", "backing_off", "no disk")
        assert shown["not_before"] is not None
        assert a1.run(run, "fail", body).status_code == 200
        last = make_run("running")
        assert a1.run(last, "fail", {**S1, "error": "x"}).json()["status"] == "failed"

    @pytest.mark.parametrize(
        "bad",
        [
            {"error": ""},
            {"error": "   "},
            {"error": None},
            {"error": 5},
            {"error": "x" * 100_001},
            {"retryable": "yes"},
            {"retryable": 1},
            {"retry_after_seconds": -1},
            {"retry_after_seconds": 1.5},
            {"retry_after_seconds": 2**31},
        ],
        ids=lambda bad: str(bad)[:40],
    )
    def test_bad_fields(self, bad, a1):
        run = make_run("running")
        problem(a1.run(run, "fail", {**S1, "error": "x", **bad}), 400, "invalid")
        assert fresh(run).status == "running"

    def test_release(self, a1):
        run = make_run("running")
        for _ in range(2):
            shown = a1.run(run, "release", {**S1, "reason": "busy"}).json()
            assert (shown["status"], shown["dispatch_attempts"]) == ("queued", 0)
        assert RunLease.objects.get(run=run).end_reason == "busy"
        problem(a1.run(make_run("running"), "release", {**S1, "reason": "x" * 5001}), 400, "invalid")


class TestB043Cancel:
    @pytest.mark.parametrize("method", ["POST", "DELETE"])
    def test_cancel(self, method, a1, ops):
        runs = [make_run("running"), make_run("dispatched"), make_run("queued")]
        for run in runs:
            for _ in range(2):
                path = f"workflow-runs/{run.pk}" + ("/cancel" if method == "POST" else "")
                answer = ops.call(method, path, {"note": "enough"})
                assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
            assert verbs_of(run) == ["create", "cancel"]
        body = problem(a1.run(runs[0], "heartbeat", S1), 409, "run_ended")
        assert (body["directive"], body["run"]["status"]) == ("stop", "cancelled")
        problem(a1.run(runs[0], "complete", {**S1, "output_summary": {"v": 1}}), 409, "run_ended")
        problem(a1.run(runs[1], "claim", S2), 409, "not_claimable")
        assert fresh(runs[0]).output_summary == {}
        assert a1.get("workflow-runs/pending").json()["runs"] == []

    def test_needs_the_right(self, a1, a2):
        for api in (a1, a2):
            problem(api.run(make_run("running"), "cancel"), 403, "forbidden")

    def test_what_ended_otherwise(self, ops):
        assert problem(ops.run(make_run("completed"), "cancel"), 409, "run_ended")["run"]["status"] == "completed"


class TestB034Nul:
    """Bad text is refused before anything is touched, and the run goes on."""

    @pytest.mark.parametrize(
        ("verb", "raw", "path"),
        [
            ("complete", b'{"session_id": "s1", "output_summary": {"inv": "POZ\\u0000X"}}', "output_summary.inv"),
            ("complete", b'{"session_id": "s1", "output_summary": {"a\\u0000": 1}}', "output_summary"),
            ("complete", b'{"session_id": "s1", "output_summary": {"a": [1, ["\\u0000"]]}}', "output_summary.a.1.0"),
            ("fail", b'{"session_id": "s1", "error": "\\u0000"}', "error"),
            ("heartbeat", b'{"session_id": "s1\\u0000"}', "session_id"),
            ("claim", b'{"session_id": "s1", "agent_id": "\\u0000"}', "agent_id"),
            ("complete", b'{"session_id": "s1", "output_summary": {"x": "\\udfff"}}', "output_summary.x"),
        ],
    )
    def test_refused(self, verb, raw, path, a1):
        run = make_run("claimed")
        body = problem(a1.run(run, verb, raw), 400)
        assert body["detail"].startswith(f"{path}: ")
        assert [error["field"] for error in body["errors"]] == [path]
        assert a1.run(run, "heartbeat", S1).status_code == 200
        assert a1.run(run, "complete", {**S1, "output_summary": {"inv": "POZX"}}).status_code == 200

    @pytest.mark.parametrize("depth", [20, 63])
    def test_b036_depth_that_is_taken_can_be_shown(self, depth, a1, client):
        run = make_run("claimed")
        raw = b'{"session_id": "s1", "output_summary": ' + b'{"a":' * (depth - 1) + b"1" + b"}" * depth
        assert a1.run(run, "complete", raw).status_code == 200
        assert a1.get(f"workflow-runs/{run.pk}").status_code == 200
        assert a1.get("workflow-runs").status_code == 200
