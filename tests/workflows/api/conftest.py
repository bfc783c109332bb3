from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from governance.models import AgentToken
from tests.factories import AgentFactory, RoutingRuleFactory

ROLES = {"a1": "specialist", "a2": "specialist", "main": "orchestrator", "ops": "operator"}


class Api:
    """A client that speaks JSON with one agent's token (None: without any)."""

    def __init__(self, agent_id: str | None, *, raise_request_exception: bool = True) -> None:
        self.client = Client(raise_request_exception=raise_request_exception)
        self.headers: dict[str, str] = {}
        if agent_id is not None:
            AgentFactory(agent_id=agent_id, role=ROLES.get(agent_id, "specialist"))
            self.headers["Authorization"] = f"Bearer {AgentToken.issue(agent_id)[1]}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """`body`: bytes as they are, anything else as JSON. Headers: `if_match` for If-Match."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.generic(
            method, f"/api/{path}", data, content_type="application/json", headers={**self.headers, **given}
        )

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", path, body, **headers)

    def run(self, run: Any, verb: str, body: Any = None) -> Any:
        return self.post(f"workflow-runs/{getattr(run, 'pk', run)}/{verb}", body)


@pytest.fixture
def api(db: None) -> Callable[..., Api]:
    return Api


@pytest.fixture
def a1(route: Any) -> Api:
    return Api("a1")


@pytest.fixture
def a2(route: Any) -> Api:
    return Api("a2")


@pytest.fixture
def ops(route: Any) -> Api:
    return Api("ops")


@pytest.fixture
def main(route: Any) -> Api:
    return Api("main")


@pytest.fixture
def routes(db: None) -> None:
    """Type `t1` goes to a1, `t2` to a2; the second is stronger."""
    for n in (1, 2):
        AgentFactory(agent_id=f"a{n}")
        RoutingRuleFactory(workflow_type=f"t{n}", agent_id=f"a{n}", priority=n, max_concurrent=10)
