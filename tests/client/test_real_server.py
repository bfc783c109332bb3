"""`dispatcher-agent run` with the product itself: a cancel, a restart of the server, a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from governance.actors import DISPATCHER
from governance.models import AgentToken
from tests.client.conftest import Result
from tests.factories import OPERATOR, AgentFactory, RoutingRuleFactory
from tests.workflows.processes import running, wait_until
from workflows import lifecycle
from workflows.client import cli
from workflows.models import WorkflowRun

pytestmark = pytest.mark.django_db(transaction=True)
Process = Callable[..., "subprocess.Popen[str]"]
QUICK = {"DISPATCHER_STALE_CLAIM_MS": "3000", "WEB_THREADS": "4"}  # a heartbeat each second


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


@pytest.fixture
def product(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    AgentFactory(agent_id="a1")
    AgentFactory(agent_id="ops", role="operator")
    RoutingRuleFactory(workflow_type="doc", agent_id="a1")
    with running("serve", "--port", "0", **QUICK) as server:
        url = address(server)
        monkeypatch.setenv("DASHBOARD_API_BASE", url)
        monkeypatch.setenv("DISPATCHER_AGENT_TOKEN", AgentToken.issue("a1")[1])
        yield server


def dispatched() -> Any:
    run = lifecycle.create("doc", actor=OPERATOR).run["id"]
    lifecycle.dispatch([run], agent_id="a1", department_id=None, actor=DISPATCHER)
    return run


def status(run: Any) -> str:
    return str(WorkflowRun.objects.values_list("status", flat=True).get(pk=run))


@pytest.fixture
def runner(product: Any, process: Process) -> Iterator[Callable[..., Any]]:
    api = os.environ["DASHBOARD_API_BASE"]  # of the product: `process` would take the scripted server's
    started = []

    def start(code: str, *options: str) -> subprocess.Popen[str]:
        options = ("--api", api, "--types", "doc", *options)
        started.append(process("run", *options, "--", sys.executable, "-c", code))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_b043_cancel_ends_the_command_within_a_heartbeat(
    runner: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = dispatched()
    child = runner("import time; time.sleep(60)", "--once", "--json")
    wait_until(lambda: status(run) == "running")
    monkeypatch.setenv("DISPATCHER_AGENT_TOKEN", AgentToken.issue("ops")[1])
    for _ in range(2):
        assert cli.main(("cancel", str(run), "--reason", "wrong input")) == 0
    assert Result(0, *capsys.readouterr()).err == ""
    out, _ = child.communicate(timeout=10)
    assert child.returncode == 2
    assert json.loads(out)["status"] == "cancelled"
    assert status(run) == "cancelled"


def test_restart_of_the_server_is_survived(runner: Any, product: subprocess.Popen[str]) -> None:
    run = dispatched()
    child = runner("import time; time.sleep(2.5); print('{\"v\": 1}')", "--once")
    wait_until(lambda: status(run) == "running")
    port = os.environ["DASHBOARD_API_BASE"].rpartition(":")[2]
    product.send_signal(signal.SIGTERM)
    product.wait(15)
    with running("serve", "--port", port, **QUICK) as again:
        address(again)
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out) == (0, '{"v": 1}\n'), err
    assert WorkflowRun.objects.get(pk=run).output_summary == {"v": 1}


def test_sigterm_while_it_waits_is_quick_and_a_later_run_is_left_alone(runner: Any) -> None:
    child = runner("")
    time.sleep(1)
    began = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0
    assert time.monotonic() - began < 3
    run = dispatched()
    time.sleep(0.3)
    assert status(run) == "dispatched"
