"""The command line against a scripted server. Only test_documents and test_real_server need a database."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.client.server import ScriptedServer
from workflows.client import cli

ROOT = Path(__file__).resolve().parent.parent.parent
VARIABLES = (
    "DASHBOARD_API_BASE",
    "DISPATCHER_AGENT_TOKEN",
    "DISPATCHER_AGENT_ID",
    "DISPATCHER_SESSION_ID",
    "NO_COLOR",
    "http_proxy",
    "HTTP_PROXY",
)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """Everything that was said, without line breaks."""
        return " ".join(f"{self.out} {self.err}".split())


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client would have slept."""
    slept: list[float] = []
    monkeypatch.setattr("workflows.client.http.sleep", slept.append)
    monkeypatch.setattr("workflows.client.waiting.sleep", slept.append)
    return slept


one_parser = functools.cache(cli.build_parser)  # to build it for each test is a third of their time


@pytest.fixture
def agent(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Runs `dispatcher-agent` in this process against the server."""
    monkeypatch.setenv("DASHBOARD_API_BASE", server.url)
    monkeypatch.setattr(cli, "build_parser", one_parser)

    def run(*argv: str) -> Result:
        code = cli.main(argv)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def process(server: ScriptedServer) -> Callable[..., subprocess.Popen[str]]:
    """Starts `dispatcher-agent` as a process of its own."""

    def start(*argv: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "workflows.client.cli", *argv],
            cwd=ROOT,
            env={**os.environ, "DASHBOARD_API_BASE": server.url, "PYTHONIOENCODING": "utf-8", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    return start
