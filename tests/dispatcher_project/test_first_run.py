"""What a new user does: a bare copy of the checkout, `up`, a run from curl to completion, Ctrl-C, and `up` again.

Nothing is prepared: the copy makes its own .venv, so the package index must be reachable.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".data", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
INSTALL_SECONDS = 300.0
START_SECONDS = 60.0

pytestmark = pytest.mark.xdist_group("first-run")


class Product:
    """One `up` in a checkout of its own."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.data = checkout / ".data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        ours = ("DATABASE_URL", "DISPATCHER_DATA_DIR", "SECRET_KEY", "DJANGO_SETTINGS_MODULE", "PYTHONPATH")
        self.environment = {name: value for name, value in os.environ.items() if name not in ours}
        self.environment["DASHBOARD_API_BASE"] = self.base

    @contextmanager
    def up(self, *options: str, seconds: float) -> Iterator[str]:
        """Running and ready; gives what it said until then. Ctrl-C at the end must end it cleanly and soon."""
        log = self.checkout / "up.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "dispatcher_project", "up", "--port", str(self.port), *options],
                cwd=self.checkout,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_for(lambda: "Ready. Open" in log.read_text() or process.poll() is not None, seconds)
            assert process.poll() is None, log.read_text()
            yield log.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0, log.read_text()
            assert "Stopped. All data is kept." in log.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def tokens(self) -> dict[str, str]:
        lines = (self.data / "tokens.env").read_text().splitlines()
        exports = [line.removeprefix("export ").split("#")[0].strip() for line in lines if line.startswith("export ")]
        return dict(line.split("=", 1) for line in exports)

    def curl(self, path: str, body: dict[str, Any] | None = None, token: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(
            self.base + path, data=json.dumps(body).encode() if body is not None else None, headers=headers
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return json.load(answer)

    def agent(self, *arguments: str, token: str | None = None) -> Any:
        environment = dict(self.environment)
        if token:
            environment["DISPATCHER_AGENT_TOKEN"] = token
        answer = subprocess.run(
            [self.checkout / ".venv" / "bin" / "dispatcher-agent", *arguments, "--json"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return json.loads(answer.stdout)


def wait_for(condition: Any, seconds: float) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    checkout = tmp_path_factory.mktemp("first-run") / "checkout"
    shutil.copytree(ROOT, checkout, ignore=LEFT_OUT)
    yield Product(checkout)
    note = checkout / ".data" / "postgres-is-elsewhere"
    home = Path(note.read_text().splitlines()[0]) if note.exists() else None
    if home and home.is_relative_to("/var/lib/workflow-dispatcher"):
        shutil.rmtree(home)


def test_a_new_user_gets_from_a_bare_checkout_to_a_finished_run_that_outlives_a_restart(product: Product) -> None:
    with product.up(seconds=INSTALL_SECONDS) as said:
        token = product.tokens()["DISPATCHER_AGENT_TOKEN"]
        assert token in said
        assert (product.data / "tokens.env").stat().st_mode & 0o777 == 0o600
        run = product.curl("/api/workflow-runs", {"workflow_type": "system-improvement-scan"}, token)
        asked = time.monotonic()
        wait_for(lambda: product.curl(f"/api/workflow-runs/{run['id']}", token=token)["status"] == "dispatched", 10)
        # Far below the poll of 30 s, which is what it would take without the ring.
        assert time.monotonic() - asked < 10
        assert [one["id"] for one in product.agent("poll", token=token)["runs"]] == [run["id"]]
        claimed = product.agent("claim", run["id"], "--session", "s1", token=token)
        assert (claimed["status"], claimed["lease_no"]) == ("claimed", 1)
        assert product.agent("heartbeat", run["id"], "--session", "s1", token=token)["status"] == "running"
        done = product.agent("complete", run["id"], "--session", "s1", "--output", '{"found": 3}', token=token)
        assert (done["status"], done["output_summary"]) == ("completed", {"found": 3})
    started = time.monotonic()
    with product.up(seconds=START_SECONDS) as said:
        assert time.monotonic() - started < START_SECONDS
        assert token not in said  # printed once
        kept = product.curl(f"/api/workflow-runs/{run['id']}", token=token)
        assert kept["status"] == "completed"
        verbs = [event["verb"] for event in kept["events"]]
        assert verbs == ["create", "dispatch", "claim", "start", "complete"]


def test_a_client_with_no_token_and_camel_case_keys_works_on_loopback_when_allowed(product: Product) -> None:
    with product.up("--anonymous-loopback", seconds=INSTALL_SECONDS):
        run = product.curl("/api/workflow-runs", {"workflowType": "qa-review", "inputPayload": {"snake_key": 1}})
        path = f"/api/workflow-runs/{run['id']}"
        wait_for(lambda: product.curl("/api/workflow-runs/pending")["runs"], 10)
        pending = product.curl("/api/workflow-runs/pending?agentId=qa-review")["runs"]
        assert [(one["targetAgentId"], one["inputPayload"]) for one in pending] == [("qa-review", {"snake_key": 1})]
        claimed = product.curl(f"{path}/claim", {"sessionId": "s1", "agentId": "qa-review"})
        assert claimed["claimSessionId"] == "s1"
        assert product.curl(f"{path}/heartbeat", {"sessionId": "s1"})["status"] == "running"
        done = product.curl(f"{path}/complete", {"sessionId": "s1", "outputSummary": {"ok": True}})
        assert (done["status"], done["outputSummary"]) == ("completed", {"ok": True})
        stats = product.curl("/api/workflow-runs/dispatcher/stats")
        assert stats["completedCount"] == stats["completed_count"] >= 1
        assert "budgetEnforcement" in stats["lastTickSummary"]


def test_a_demo_moves(product: Product) -> None:
    with product.up("--demo", "--anonymous-loopback", seconds=INSTALL_SECONDS):
        done = "/api/workflow-runs?status=completed&limit=100"
        before = len(product.curl(done)["runs"])
        wait_for(lambda: len(product.curl(done)["runs"]) > before, 60)
