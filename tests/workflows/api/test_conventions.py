"""What holds for every endpoint: problems as problem+json, strict input, never a 500."""

from __future__ import annotations

import json
import re

import pytest
from django.db import OperationalError
from django.urls import get_resolver

from tests.factories import AgentTokenFactory, DepartmentFactory, make_run
from tests.workflows.api.conftest import Api

RUN_ID = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0000"
QUEUED_ID = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001"
LEASED = {"session_id": "s1"}
ROUTE = {"workflow_type": "doc", "agent_id": "a1"}
# (method, path, a body that would do)
ENDPOINTS = [
    ("GET", "workflow-runs", None),
    ("POST", "workflow-runs", {"workflow_type": "doc"}),
    ("GET", "workflow-runs/pending", None),
    ("POST", "workflow-runs/claim-next", LEASED),
    ("GET", "workflow-runs/dispatcher/stats", None),
    ("GET", "workflow-runs/active", None),
    ("GET", "workflow-runs/stuck", None),
    ("POST", "workflow-runs/bulk", {"action": "cancel", "filter": {"status": "queued"}}),
    ("GET", "workflow-runs/{run}", None),
    ("PATCH", "workflow-runs/{run}", {"operator_notes": "x"}),
    ("DELETE", "workflow-runs/{run}", {}),
    ("GET", "workflow-runs/{run}/explain", None),
    ("POST", "workflow-runs/{run}/claim", LEASED),
    ("POST", "workflow-runs/{run}/start", LEASED),
    ("POST", "workflow-runs/{run}/heartbeat", LEASED),
    ("POST", "workflow-runs/{run}/complete", LEASED),
    ("POST", "workflow-runs/{run}/fail", {**LEASED, "error": "x"}),
    ("POST", "workflow-runs/{run}/release", LEASED),
    ("POST", "workflow-runs/{run}/cancel", {}),
    ("POST", "workflow-runs/{run}/step", {**LEASED, "step_name": "build"}),
    ("GET", "workflow-runs/{run}/artifacts", None),
    ("POST", "workflow-runs/{run}/artifacts", {**LEASED, "uri": "https://x.example/1"}),
    ("POST", "workflow-runs/{run}/bind-session", LEASED),
    ("POST", "workflow-runs/{run}/unbind-session", LEASED),
    ("POST", "workflow-runs/{queued}/run-now", {}),
    ("POST", "sessions/s1/heartbeat", {}),
    ("GET", "workflow-routing", None),
    ("PUT", "workflow-routing", ROUTE),
    ("GET", "workflow-routing/doc", None),
    ("PATCH", "workflow-routing/doc", {"priority": 1}),
    ("DELETE", "workflow-routing/doc", None),
    ("GET", "agents", None),
    ("POST", "agents", {"agent_id": "new"}),
    ("GET", "agents/a1", None),
    ("PATCH", "agents/a1", {"active": True}),
    ("GET", "agents/a1/tokens", None),
    ("POST", "agents/a1/tokens", {"days": 1}),
    ("DELETE", "agents/a1/tokens/key1", None),
    ("GET", "departments", None),
    ("GET", "departments/d1", None),
    ("PATCH", "departments/d1", {"name": "D"}),
    ("POST", "departments", {"department_id": "d", "name": "D"}),
]
PATTERNS = {
    "{run}": "<str:run_id>",
    "{queued}": "<str:run_id>",
    "/doc": "/<str:workflow_type>",
    "/a1": "/<str:agent_id>",
    "/key1": "/<str:key>",
    "/d1": "/<str:department_id>",
    "/s1": "/<path:session_id>",
}
NAMES = re.compile("|".join(re.escape(name) for name in PATTERNS))
WRITES = [endpoint for endpoint in ENDPOINTS if endpoint[2] is not None]
BAD_BODIES = {
    "no JSON": b"{",
    "list": b"[]",
    "text": b'"x"',
    "null": b"null",
    "NaN": b'{"session_id": NaN}',
    "Infinity": b'{"x": Infinity}',
    "-Infinity": b'{"x": [-Infinity]}',
    "1e999": b'{"x": 1e999}',
    "NUL": b'{"session_id": "a\\u0000b"}',
    "NUL in a key": b'{"x": {"a\\u0000": 1}}',
    "half a pair": b'{"x": "\\ud800"}',
    "deep list": b"[" * 20_000 + b"]" * 20_000,
    "deep objects": b'{"output_summary": ' + b'{"a":' * 2_000 + b"1" + b"}" * 2_001,
    "65 levels": b'{"a":' * 65 + b"1" + b"}" * 65,
    "not UTF-8": b'{"x": "\xff"}',
    "UTF-16": '{"x": 1}'.encode("utf-16"),
    "BOM": b"\xef\xbb\xbf{}",
}
BAD_VALUES = [{"session_id": value} for value in ("", 1, [], {}, True, "x" * 201, None)] + [
    {**LEASED, "lease_no": value} for value in ("1", 1.5, True, 2**31, 2**63, -1, [])
]


def paths(endpoint):
    return f"{endpoint[0]} {endpoint[1]}"


@pytest.fixture
def run(route):
    """With the other rows that the paths name."""
    DepartmentFactory(department_id="d1")
    AgentTokenFactory(key="key1")
    make_run("queued", pk=QUEUED_ID)
    return make_run("claimed")


def at(endpoint, run):
    return endpoint[1].format(run=run.pk, queued=QUEUED_ID)


def problem(answer, status, code=None):
    body = json.loads(answer.content)
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json"), answer.content
    assert body["type"] == "about:blank"
    assert body["status"] == status
    assert body["error"] == body["detail"]
    assert body["title"]
    assert code is None or body["code"] == code, body
    return body


def test_this_table_has_every_endpoint():
    known = {NAMES.sub(lambda found: PATTERNS[found[0]], endpoint[1]) for endpoint in ENDPOINTS}
    (api,) = [found for found in get_resolver().url_patterns if str(found.pattern) == "api/"]
    assert known | {"schema", "docs"} == {str(found.pattern) for found in api.url_patterns}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=paths)
class TestEveryEndpoint:
    def test_works(self, endpoint, run, ops):
        method, path, body = endpoint
        answer = ops.call(method, at(endpoint, run), body)
        assert answer.status_code in (200, 201) or (path.endswith("claim") and answer.status_code == 409)

    def test_needs_credentials(self, endpoint, run):
        answer = Api(None).call(endpoint[0], at(endpoint, run), endpoint[2])
        problem(answer, 401, "not_authenticated")
        assert answer["WWW-Authenticate"] == "Bearer"

    def test_refuses_other_methods(self, endpoint, run, ops):
        allowed = {method for method, path, _ in ENDPOINTS if path == endpoint[1]} | {"HEAD", "OPTIONS"}
        if "GET" not in allowed:
            allowed -= {"HEAD"}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"} - allowed:
            answer = ops.call(method, at(endpoint, run), {})
            problem(answer, 405, "method_not_allowed")
            assert {name.strip() for name in answer["Allow"].split(",")} >= allowed - {"HEAD"}

    @pytest.mark.parametrize("query", ["bogus=1", "format=json", "page=-1", "wait_=3", "cursor_=1", "x%00=1"])
    def test_refuses_unknown_query_parameters(self, endpoint, query, run, ops):
        body = problem(ops.call(endpoint[0], f"{at(endpoint, run)}?{query}", endpoint[2]), 400, "invalid")
        assert "unknown query parameter" in body["errors"][0]["message"]

    @pytest.mark.parametrize("query", ["%ff=1", "limit=%ff", "a=1&" * 200])
    def test_refuses_a_query_that_cannot_be_read(self, endpoint, query, run, ops):
        problem(ops.call(endpoint[0], f"{at(endpoint, run)}?{query}", endpoint[2]), 400, "invalid")


@pytest.mark.parametrize("endpoint", WRITES, ids=paths)
class TestEveryWrite:
    @pytest.mark.parametrize("bad", BAD_BODIES.values(), ids=BAD_BODIES)
    def test_refuses_a_bad_body_and_changes_nothing(self, endpoint, bad, run, ops):
        answer = ops.call(endpoint[0], at(endpoint, run), bad)
        problem(answer, 400, "parse_error")
        run.refresh_from_db()
        assert (run.status, run.claim_session_id, run.last_seq) == ("claimed", "s1", 1)

    def test_refuses_what_is_no_json(self, endpoint, run, ops):
        for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""):
            answer = ops.client.generic(
                endpoint[0], f"/api/{at(endpoint, run)}", b"a=1", content_type=kind, headers=ops.headers
            )
            problem(answer, 415, "unsupported_media_type")

    def test_refuses_a_body_that_is_too_large(self, endpoint, run, ops):
        body = b'{"session_id": "' + b"x" * 5 * 1024 * 1024 + b'"}'
        problem(ops.call(endpoint[0], at(endpoint, run), body), 413, "too_large")

    def test_ignores_unknown_fields(self, endpoint, run, ops):
        answer = ops.call(endpoint[0], at(endpoint, run), {**endpoint[2], "no_such_field": 1})
        assert answer.status_code in (200, 201, 409)


@pytest.mark.parametrize("verb", ["claim", "start", "heartbeat", "complete", "fail", "release"])
@pytest.mark.parametrize("bad", BAD_VALUES, ids=str)
def test_every_verb_checks_session_and_lease(verb, bad, run, a1):
    answer = a1.run(run, verb, {"error": "x", **bad})
    if verb == "claim" and "lease_no" in bad:
        assert answer.status_code == 200  # no field of a claim
        return
    body = problem(answer, 400, "invalid")
    assert {error["field"] for error in body["errors"]} == {"lease_no" if "lease_no" in bad else "session_id"}


@pytest.mark.parametrize(
    "bad", ["1", "not-a-uuid", "x" * 10_000, "%00", "..%2fx", "%ff", RUN_ID + "0", "{" + RUN_ID + "}"]
)
@pytest.mark.parametrize("verb", ["", "/explain", "/claim", "/cancel", "/complete"])
def test_what_is_no_id_names_no_run(bad, verb, a1, ops):
    method = "GET" if verb in ("", "/explain") else "POST"
    problem(ops.call(method, f"workflow-runs/{bad}{verb}", {**LEASED}), 404)


@pytest.mark.parametrize(
    "path", ["", "nothing", "workflow-runs/", "workflow-runs/../x", "x/%00", "workflow-runs//claim"]
)
def test_unknown_routes(path, ops):
    problem(ops.get(path), 404, "not_found")


@pytest.mark.parametrize("path", [f"workflow-runs/{RUN_ID}", f"workflow-runs/{RUN_ID}/explain"])
def test_unknown_run(path, ops):
    problem(ops.get(path), 404, "run_not_found")


@pytest.mark.parametrize("bad", ["%00", "x" * 101, "nobody"])
@pytest.mark.parametrize("path", ["workflow-routing", "agents"])
def test_unknown_names(path, bad, ops):
    problem(ops.get(f"{path}/{bad}"), 404, "not_found")
    problem(ops.call("PATCH", f"{path}/{bad}", {}), 404, "not_found")


def test_pages_for_people_stay_pages(client, db):
    assert client.get("/").status_code == 302
    assert client.get("/nothing")["Content-Type"].startswith("text/html")


@pytest.mark.parametrize(("path", "raises"), [("workflow-runs", None), ("workflow-runs/pending", None)])
def test_a_database_that_is_away_answers_503(path, raises, a1, monkeypatch):
    def gone(*args, **kwargs):
        raise OperationalError("the connection is closed")

    monkeypatch.setattr("workflows.api.authentication.authenticate", gone)
    answer = a1.get(path)
    problem(answer, 503, "database_unavailable")
    assert int(answer["Retry-After"]) >= 1


def test_a_bug_answers_500_as_a_problem(a1, monkeypatch):
    def bug(*args, **kwargs):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("workflows.api.stats.read", bug)
    a1.client.raise_request_exception = False
    body = problem(a1.get("workflow-runs/dispatcher/stats"), 500, "server_error")
    assert "secret" not in str(body)


def test_openapi_document_is_served(client, db):
    schema = client.get("/api/schema").json()
    assert "/api/workflow-runs/{run_id}/claim" in schema["paths"]
    assert schema["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert client.get("/api/docs").status_code == 200
