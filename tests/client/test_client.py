"""`DispatcherClient` and its twin for asyncio: the same calls, the same errors."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.conftest import ROOT
from tests.client.runs import ID, STATS, run
from tests.client.server import DROP, Answer, ScriptedServer, html, problem, unused_port
from workflows.client import (
    ApiProblem,
    AsyncDispatcherClient,
    DispatcherClient,
    LeaseLost,
    OutcomeUnknown,
)
from workflows.client.errors import BadAnswer, Unavailable, Unreachable

S1 = {"session_id": "s1", "lease_no": 3}
Call = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls a method of either client: (name, arguments…)."""
    monkeypatch.setenv("DASHBOARD_API_BASE", server.url)

    monkeypatch.setattr("workflows.client.retries.FIRST_DELAY_SECONDS", 0.001)

    async def asynchronously(method: str, *arguments: Any, **options: Any) -> Any:
        seconds = options.pop("patience", 2)
        async with AsyncDispatcherClient(timeout_seconds=seconds, token="wd_secret") as client:
            return await getattr(client, method)(*arguments, **options)

    def call(method: str, *arguments: Any, **options: Any) -> Any:
        if request.param == "async":
            return asyncio.run(asynchronously(method, *arguments, **options))
        with DispatcherClient(timeout_seconds=options.pop("patience", 2), token="wd_secret") as client:
            return getattr(client, method)(*arguments, **options)

    return call


USAGE = {"model_id": "m", "input_tokens": 3}
RUN = f"workflow-runs/{ID}"
CALLS = [
    ("pending", (), {"limit": 3, "wait": 20}, "workflow-runs/pending?limit=3&wait=20", None),
    ("claim", (ID,), {"session_id": "s1"}, f"{RUN}/claim", {"session_id": "s1"}),
    (
        "claim_next",
        (),
        {"session_id": "s1", "workflow_types": ("doc",), "wait": 20},
        "workflow-runs/claim-next",
        {"session_id": "s1", "workflow_types": ["doc"], "wait": 20},
    ),
    ("start", (ID,), S1, f"{RUN}/start", S1),
    ("heartbeat", (ID,), {**S1, "percent": 4}, f"{RUN}/heartbeat", {**S1, "progress": {"percent": 4}}),
    ("complete", (ID,), {**S1, "output_summary": {"v": 1}, "usage": USAGE}, f"{RUN}/complete", None),
    ("fail", (ID,), {**S1, "error": "x", "retryable": True}, f"{RUN}/fail", {**S1, "error": "x", "retryable": True}),
    ("release", (ID,), {**S1, "reason": "x"}, f"{RUN}/release", {**S1, "reason": "x"}),
    ("usage", (ID,), {**S1, "usage": [USAGE]}, f"{RUN}/usage", {**S1, "usage": [USAGE]}),
    ("show", (ID,), {"wait": 30}, f"{RUN}?wait=30", None),
    ("submit", ("doc", {"n": 1}), {"priority": 4}, "workflow-runs", None),
    ("cancel", (ID,), {"reason": "x"}, f"{RUN}/cancel", {"reason": "x"}),
    ("stats", (), {}, "workflow-runs/dispatcher/stats", None),
]


@pytest.mark.parametrize(("method", "arguments", "options", "path", "body"), CALLS, ids=[entry[0] for entry in CALLS])
def test_a_method_makes_its_call_and_repeats_it_as_it_is(
    call: Call, server: ScriptedServer, method: str, arguments: Any, options: Any, path: str, body: Any
) -> None:
    whole = {**STATS, **run("running"), "runs": [run()], "lease": "held"}
    server.script = [DROP, Answer(200, whole)]
    answer = call(method, *arguments, **options)
    assert answer == ([run()] if method == "pending" else whole)
    first, again = server.received
    assert (first.path, first.body, first.headers) == (again.path, again.body, again.headers)
    assert first.path == f"/api/{path}"
    assert first.headers["authorization"] == "Bearer wd_secret"
    if body is not None:
        assert first.json == body


def test_nothing_to_claim_is_none(call: Call, server: ScriptedServer) -> None:
    server.script = [Answer(204)]
    assert call("claim_next", session_id="s1") is None


TROUBLE = [
    ([problem(409, "lease_lost", "Lost", run=run("queued"))], LeaseLost),
    ([problem(400, "invalid", "No")], ApiProblem),
    ([DROP] * 4, OutcomeUnknown),
    ([html(502)] * 4, OutcomeUnknown),
    ([problem(503, "overloaded", "Busy")] * 4, Unavailable),
    ([html(200)], BadAnswer),
]


@pytest.mark.parametrize(("script", "kind"), TROUBLE, ids=[kind.__name__ for _, kind in TROUBLE])
def test_errors_are_told_apart(call: Call, server: ScriptedServer, script: list[Answer], kind: type[Exception]) -> None:
    server.script = list(script)
    with pytest.raises(kind) as raised:
        call("complete", ID, **S1)
    assert type(raised.value) is kind
    assert len(server.received) == len(script)
    if isinstance(raised.value, LeaseLost):
        assert (raised.value.status, raised.value.code, raised.value.run) == (409, "lease_lost", run("queued"))


def test_usage_that_shrank_is_no_lost_lease(call: Call, server: ScriptedServer) -> None:
    server.script = [problem(409, "usage_shrank", "Less than before")]
    with pytest.raises(ApiProblem) as raised:
        call("usage", ID, **S1, usage=USAGE)
    assert (type(raised.value), raised.value.code) == (ApiProblem, "usage_shrank")


def test_unclear_submit_tells_its_key(call: Call, server: ScriptedServer) -> None:
    server.script = [DROP] * 4
    with pytest.raises(OutcomeUnknown) as raised:
        call("submit", "doc")
    assert {seen.headers["idempotency-key"] for seen in server.received} == {raised.value.facts["idempotency_key"]}


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with AsyncDispatcherClient(address, timeout_seconds=0.2) as client:
            await client.stats()

    address = f"127.0.0.1:{unused_port()}"
    with pytest.raises(Unreachable), DispatcherClient(address) as client:
        client.stats()
    monkeypatch.setattr("workflows.client.retries.FIRST_DELAY_SECONDS", 0.001)
    with pytest.raises(Unreachable):
        asyncio.run(ask())


def test_trickling_answer_is_not_waited_for(call: Call, server: ScriptedServer) -> None:
    server.script = [Answer(200, run("completed"), trickle=0.02), Answer(200, run("completed"))]
    assert call("show", ID, patience=0.3)["status"] == "completed"
    assert len(server.received) == 2


def test_a_wait_is_waited_for(server: ScriptedServer) -> None:
    server.script = [Answer(200, {"runs": []}, after=0.5)]
    with DispatcherClient(server.url, timeout_seconds=0.2) as client:
        assert client.pending(wait=1) == []
    assert len(server.received) == 1


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, tuple[list[str], str | None]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: (list(inspect.signature(it).parameters), it.__doc__) for name, it in found if name[0] != "_"}

    assert methods(DispatcherClient) == methods(AsyncDispatcherClient)


def test_everything_is_importable_without_django_and_lazily() -> None:
    code = (
        "import sys, workflows.client as c; before = 'httpx' in sys.modules;"
        "names = [n for n in dir(c) if n[0].isupper()]; [getattr(c, n) for n in names];"
        "print([before, len(names) > 12, 'django' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout) == [False, True, False]
    with pytest.raises(ImportError):
        from workflows.client import Nonsense  # type: ignore[attr-defined]  # noqa: F401
