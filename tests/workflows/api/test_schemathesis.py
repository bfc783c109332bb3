"""Bodies and queries made from the OpenAPI document: never a 5xx, nothing that the document doesn't say.

Bounded, and the same ones each time; each operation is asked about rows that are there.
"""

from __future__ import annotations

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dispatcher_project.wsgi import application
from governance.models import AgentToken
from tests.factories import AgentFactory, AgentTokenFactory, DepartmentFactory, make_run

EXAMPLES = 12
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SIGNALS = (request_started, request_finished)
THERE = {"agent_id": "a1", "workflow_type": "doc", "department_id": "d1", "key": "key1", "session_id": "s1"}


schema = schemathesis.openapi.from_wsgi("/api/schema", application)


@pytest.fixture
def token(route):
    AgentFactory(agent_id="ops", role="operator")
    DepartmentFactory(department_id="d1")
    AgentTokenFactory(key="key1")
    return AgentToken.issue("ops")[1]


@pytest.fixture(autouse=True)
def one_connection():
    """The test's transaction outlives its requests."""
    for signal in SIGNALS:
        signal.disconnect(close_old_connections)
    yield
    for signal in SIGNALS:
        signal.connect(close_old_connections)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_server_error_and_nothing_undocumented(case, token):
    for state in ("running", "dispatched", "queued"):
        there = {**THERE, "run_id": str(make_run(state).pk)}
        case.path_parameters = {name: there[name] for name in case.path_parameters or {}}
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=CHECKS)
        if "run_id" not in case.path_parameters:
            break
