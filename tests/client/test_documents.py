"""docs/agents.md and docs/commands.md: examples run against the real server, the reference is the parser's."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import ROOT
from tests.factories import AgentFactory, RoutingRuleFactory
from tests.workflows.processes import running
from workflows.client import calls, cli
from workflows.client.completion import Option, commands_of, options_of
from workflows.client.text import width

AGENTS = (ROOT / "docs" / "agents.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()
BLOCK = re.compile(r"^```(sh|python) test\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARSER = cli.build_parser()


@pytest.fixture
def product(transactional_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A server, a dispatcher, an agent's token, and `dispatcher-agent` on the path."""
    from governance.models import AgentToken

    AgentFactory(agent_id="coder", role="operator")
    RoutingRuleFactory(workflow_type="code-change", agent_id="coder", max_concurrent=5)
    script = tmp_path / "dispatcher-agent"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m workflows.client.cli "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DISPATCHER_AGENT_TOKEN", AgentToken.issue("coder")[1])
    with running("serve", "--port", "0") as server, running("run_dispatcher"):
        assert server.stdout is not None
        monkeypatch.setenv("DASHBOARD_API_BASE", server.stdout.readline().split()[-1])
        yield


@pytest.mark.django_db(transaction=True)
def test_examples_of_the_tutorial_work(product: None, tmp_path: Path) -> None:
    from workflows.models import WorkflowRun

    interpreters = {"sh": ["bash", "-euc"], "python": [sys.executable, "-W", "error", "-c"]}
    blocks = BLOCK.findall(AGENTS)
    assert len(blocks) == 6
    for language, code in blocks:
        done = subprocess.run([*interpreters[language], code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    ends = WorkflowRun.objects.order_by("created_at").values_list("status", "output_summary")
    assert list(ends) == [("completed", {"changed_files": n}) for n in (3, 1, 3, 3, 3)]


def test_tutorial_says_of_every_call_what_a_lost_reply_means() -> None:
    rows = re.findall(r"^\| (`.+?) \|", AGENTS.partition("## When an answer is lost")[2], re.MULTILINE)
    named = {name.replace("-", "_") for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    made = {name for name, _ in inspect.getmembers(calls, inspect.isfunction) if not name.startswith("_")}
    assert named == made - {"session_heartbeat", "quote", "urlencode", "dataclass"}


def described(options: tuple[Option, ...]) -> set[tuple[str, str]]:
    return {(option.names[-1], option.help) for option in options if "--help" not in option.names}


def written(section: str) -> set[tuple[str, str]]:
    """(option, its help) of the section's table."""
    rows = re.findall(r"^\| `(--[a-z-]+)[^`]*` \| (.+) \|$", section, re.MULTILINE)
    return {(name, text.replace("`", "")) for name, text in rows}


@pytest.mark.parametrize("command", commands_of(PARSER), ids=lambda command: command.names[0])
def test_reference_has_every_command_with_its_options(command: Any) -> None:
    name = command.names[0]
    title = " or ".join(f"`{each}`" for each in command.names)
    _, found, rest = COMMANDS.partition(f"\n### {title}")
    assert found, title
    section = re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]
    own = described(command.options) - described(options_of(PARSER))
    assert written(section) == own, name
    assert command.help in section


def test_reference_has_nothing_else() -> None:
    titles = re.findall(r"^### `([a-z]+)`", COMMANDS, re.MULTILINE)
    assert titles == [command.names[0] for command in commands_of(PARSER)]
    general = COMMANDS.partition("## Options of every command")[2].partition("\n## ")[0]
    assert written(general) == described(options_of(PARSER)) - {("--version", "show program's version number and exit")}
    epilogs = f"{cli.EPILOG} {cli.RUN_EPILOG}"
    assert set(re.findall(r"^\| (\d+) \|", COMMANDS, re.MULTILINE)) <= set(re.findall(r"\d+", epilogs)) | {"130"}


def test_pages_fit_their_columns() -> None:
    for page in (AGENTS, COMMANDS):
        assert [line for line in page.splitlines() if width(line) > 120 and not line.startswith("|")] == []
