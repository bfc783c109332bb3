"""The OpenAPI document: complete, without a warning, and true of what is really answered."""

from __future__ import annotations

import re
from functools import cache

import jsonschema
import pytest
from django.core.management import call_command
from django.urls import get_resolver
from drf_spectacular.generators import SchemaGenerator

from tests.factories import make_run
from tests.workflows.api.test_conventions import ENDPOINTS, at, paths, run  # noqa: F401  (a fixture)
from workflows.api import openapi, shapes

UNDOCUMENTED = {"/api/schema", "/api/docs"}


@cache
def document():
    return SchemaGenerator().get_schema(request=None, public=True)


def operations():
    return {(path, method): found for path, methods in document()["paths"].items() for method, found in methods.items()}


def converted(schema):
    """OpenAPI 3.0's dialect as JSON Schema."""
    if isinstance(schema, list):
        return [converted(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: converted(value) for name, value in schema.items() if name != "nullable"}
    if schema.get("nullable"):
        return {"anyOf": [{"type": "null"}, found]}
    return found


def errors(name, value):
    components = {"components": converted(document()["components"])}
    validator = jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **components})
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in validator.iter_errors(value)
    ]


def schema_of(response):
    (content,) = response["content"].values()
    return content["schema"]["$ref"].rpartition("/")[2]


def operation_of(method, path):
    for (pattern, verb), found in sorted(operations().items(), key=lambda item: "{" in item[0][0]):
        shape = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(pattern))
        if verb == method.lower() and re.fullmatch(shape, f"/api/{path}"):
            return found
    raise AssertionError(f"{method} {path} is not documented")


def test_without_a_warning(tmp_path):
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yml"))


def test_has_every_route_and_no_other():
    (api,) = [found for found in get_resolver().url_patterns if str(found.pattern) == "api/"]
    routed = {
        ("/api/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(found.pattern)), method)
        for found in api.url_patterns
        for method in getattr(found.callback, "actions", {"get": ""})
        if method != "head"
    }
    assert {pair for pair in routed if pair[0] not in UNDOCUMENTED} == set(operations())


def test_every_operation_is_whole():
    for (path, method), operation in operations().items():
        name = f"{method} {path}"
        assert operation["operationId"], name
        assert operation["security"], name
        assert {"400", "401", "503"} <= set(operation["responses"]), name
        for status, response in operation["responses"].items():
            assert response["description"], (name, status)
            if int(status) < 300 and status != "204":
                assert schema_of(response) in document()["components"]["schemas"], (name, status)
            elif int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (name, status)
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"].get("example"), name
    ids = [operation["operationId"] for operation in operations().values()]
    assert len(ids) == len(set(ids))


def test_each_answer_that_is_named_belongs_to_an_operation():
    assert set(openapi.ANSWERS) <= set(operations())


@pytest.mark.parametrize("name", openapi.EXAMPLES)
def test_examples_are_valid(name):
    example = openapi.EXAMPLES[name]
    shape = getattr(shapes, name.removeprefix("Patched"))
    assert shape.read(example, partial=name.startswith("Patched"))
    assert errors(name, example) == []


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=paths)
def test_answers_are_as_documented(endpoint, run, ops):  # noqa: F811
    method, _, body = endpoint
    make_run("running", workflow_type="own", dispatch_attempts=3)
    make_run("queued", workflow_type="nobody")
    operation = operation_of(method, at(endpoint, run).split("?")[0])
    answer = ops.call(method, at(endpoint, run), body)
    response = operation["responses"][str(answer.status_code)]
    if answer.content:
        assert errors(schema_of(response), answer.json()) == []


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=paths)
def test_refusals_are_documented(endpoint, run, ops, a2):  # noqa: F811
    method, _, body = endpoint
    operation = operation_of(method, at(endpoint, run))
    path = at(endpoint, run).replace(str(run.pk), "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0009").replace("a1", "nobody")
    answers = [
        a2.call(method, at(endpoint, run), body),
        ops.call(method, path, body),
        ops.call(method, at(endpoint, run), body, if_match='"999"'),
        ops.call(method, at(endpoint, run), b"{"),
        ops.call(method, f"{at(endpoint, run)}?bogus=1", body),
    ]
    for answer in answers:
        assert str(answer.status_code) in operation["responses"], answer.content
        if answer.status_code >= 400:
            assert errors("Problem", answer.json()) == []


def test_a_run_with_everything(ops, a1):
    run = make_run("running")  # noqa: F811
    held = {"session_id": "s1"}
    a1.run(run, "step", {**held, "step_name": "x"})
    a1.run(run, "artifacts", {**held, "uri": "x:y"})
    beat = a1.run(run, "heartbeat", {**held, "progress": {"percent": 1, "message": "m"}}).json()
    assert errors("RunHeld", beat) == []
    assert errors("RunsHeld", a1.post("sessions/s1/heartbeat").json()) == []
    a1.run(run, "complete", held)
    assert errors("RunDetail", ops.get(f"workflow-runs/{run.pk}").json()) == []
    make_run("running", dispatch_attempts=3)
    stuck = ops.get("workflow-runs/stuck").json()
    assert stuck["runs"]
    assert errors("RunsStuck", stuck) == []
    assert errors("AgentTokenPage", ops.get("agents/a1/tokens").json()) == []


def test_the_comparison_sees_what_is_wrong():
    assert "'id' is a required property" in str(errors("Run", {}))
    assert errors("DispatcherStats", {"queued_count": "1"})
