"""Options, environment, help; and the command as a process of its own."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import ROOT, Result
from tests.client.runs import ID, run
from tests.client.server import Answer, ScriptedServer
from workflows.client import __version__, cli, config
from workflows.client.completion import commands_of
from workflows.client.errors import UsageError

Agent = Callable[..., Result]
Process = Callable[..., "subprocess.Popen[str]"]
S1 = ("--session", "s1")
COMMANDS = tuple(command.names[0] for command in commands_of(cli.build_parser()))

WRONG = [
    (),
    ("dance",),
    ("claim",),
    ("claim", ID),
    ("claim", "", *S1),
    ("claim", "..", *S1),
    ("claim", ID, "--session", ""),
    ("complete", ID),
    ("fail", ID, *S1),
    ("poll", "--limit", "many"),
    ("poll", "--lim", "3"),
    ("poll", "--timeout", "0"),
    ("poll", "--timeout", "nan"),
    ("poll", "extra"),
    ("hb", ID, *S1, "--percent", "inf"),
    ("run",),
    ("run", "--", "true"),
    ("run", "--types", ",", "--", "true"),
    ("run", "--types", "a"),
    ("run", "--types", "a", "--grace", "x", "--", "true"),
    ("submit",),
    ("submit", "--wait", "doc"),
    ("poll", "--api", "ftp://x"),
    ("poll", "--token-file", "/no/such/file"),
]


@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_wrong_usage_exits_1_and_sends_nothing(agent: Agent, server: ScriptedServer, argv: tuple[str, ...]) -> None:
    result = agent(*argv)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("dispatcher-agent: ")
    assert all(len(line) <= 80 for line in result.err.splitlines())
    in_json = agent("--json", *argv)
    assert (in_json.code, in_json.json["code"], in_json.err) == (1, "usage", "")
    assert server.received == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(agent: Agent, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = agent(*command.split(), "--help")
    assert result.code == 0
    assert result.out.startswith(f"usage: dispatcher-agent {command}".rstrip())
    assert all(len(line) <= 80 for line in result.out.splitlines())


COMPLETED = [
    ("dispatcher-agent he", {"heartbeat"}),
    ("dispatcher-agent --api x comp", {"complete", "completion"}),
    ("dispatcher-agent --json poll --li", {"--limit"}),
    ("dispatcher-agent hb --m", {"--message"}),
    ("dispatcher-agent completion ", {"bash", "zsh", "fish"}),
    ("dispatcher-agent poll --limit ", set()),
    ("dispatcher-agent run --types a --output-file pypr", {"pyproject.toml"}),
    ("dispatcher-agent run --types a -- pypr", {"pyproject.toml"}),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_bash_completes(agent: Agent, server: ScriptedServer, typed: str, offered: set[str]) -> None:
    script = agent("completion", "bash").out
    words = typed.split(" ")
    ask = (
        f"{script}\nCOMP_WORDS=({' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words) - 1}; _dispatcher_agent;"
    )
    ask += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
    )
    found = {word for word in done.stdout.splitlines() if word}
    assert done.stderr == ""
    assert offered <= found
    assert offered == found or words[-1] == ""
    assert server.received == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_option(agent: Agent, shell: str) -> None:
    result = agent("completion", shell)
    assert result.code == 0
    dashes = "--" if shell != "fish" else "-l "
    for command in commands_of(cli.build_parser()):
        assert all(name in result.out for name in command.names)
        assert all(f"{dashes}{name[2:]}" in result.out for option in command.options for name in option.names[-1:])
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=result.out, text=True, check=True, timeout=20)


def test_version_is_the_projects(agent: Agent) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert agent("--version") == Result(0, f"dispatcher-agent {__version__}\n", "")


@pytest.mark.parametrize("where", ["before", "after"])
def test_global_options_go_before_or_after_the_command(
    agent: Agent, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    monkeypatch.setenv("DASHBOARD_API_BASE", "http://127.0.0.1:1")
    (tmp_path / "token").write_text("wd_abc\n")
    options = ("--api", server.url, "--token-file", f"{tmp_path}/token", "--timeout", "5", "--json")
    server.script = [Answer(200, {"runs": []})]
    result = agent(*options, "poll") if where == "before" else agent("poll", *options)
    assert (result.code, result.json) == (0, {"runs": []})
    assert server.received[0].headers["authorization"] == "Bearer wd_abc"


BASES = [
    ("http://h:1", "http://h:1"),
    ("http://h:1/", "http://h:1"),
    ("http://h:1/api", "http://h:1"),
    ("http://h:1/api/", "http://h:1"),
    (" http://h:1// ", "http://h:1"),
    ("h:1", "http://h:1"),
    ("localhost:3876/api", "http://localhost:3876"),
    ("https://h/sub/api/", "https://h/sub"),
    ("http://[::1]:3876", "http://[::1]:3876"),
    ("", "http://127.0.0.1:3876"),
]


@pytest.mark.parametrize(("given", "base"), BASES)
def test_server_address_in_its_many_spellings(monkeypatch: pytest.MonkeyPatch, given: str, base: str) -> None:
    monkeypatch.setenv("DASHBOARD_API_BASE", given)
    assert config.api_base(None) == base


@pytest.mark.parametrize(
    "given", ["ftp://h", "http://", "http://h:99999", "http://u:secret@h", "http://h?x=1", "http://h#x", "://"]
)
def test_unusable_address_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(UsageError) as refusal:
        config.api_base(given)
    assert "secret" not in refusal.value.detail


@pytest.mark.parametrize("variable", ["", "/", "/api", "/api/"])
def test_calls_go_below_api(agent: Agent, server: ScriptedServer, variable: str) -> None:
    server.script = [Answer(200, {"runs": []})]
    assert agent("poll", "--api", server.url + variable).code == 0
    assert server.received[0].path == "/api/workflow-runs/pending?limit=3"


def test_token_is_sent_and_never_shown(agent: Agent, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCHER_AGENT_TOKEN", " wd_secret \n")
    server.script = [Answer(401, {"detail": "Invalid token", "code": "bad_token"})]
    result = agent("poll")
    assert server.received[0].headers["authorization"] == "Bearer wd_secret"
    assert "wd_secret" not in result.words
    assert "No token was sent" not in result.words
    monkeypatch.setenv("DISPATCHER_AGENT_TOKEN", "wd_secret\r\nX-Evil: 1")
    broken = agent("poll")
    assert (broken.code, len(server.received)) == (1, 1)
    assert "wd_secret" not in broken.words


def test_without_token_no_header_is_sent_and_a_401_says_so(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(401, {"detail": "Credentials are needed"})]
    result = agent("poll")
    assert "authorization" not in server.received[0].headers
    assert "No token was sent: set DISPATCHER_AGENT_TOKEN." in result.words


def test_loopback_is_never_asked_through_a_proxy(
    agent: Agent, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server.script = [Answer(200, {"runs": []})]
    assert agent("poll").code == 0


def test_run_id_can_not_leave_its_place_in_the_path(agent: Agent, server: ScriptedServer) -> None:
    server.script = [Answer(404, {"detail": "No such run"})]
    agent("show", "../agents?x=1#y")
    assert server.received[0].path == "/api/workflow-runs/..%2Fagents%3Fx%3D1%23y"


def test_json_survives_an_output_that_knows_only_ascii(server: ScriptedServer, process: Process) -> None:
    server.script = [Answer(200, '{"id": "ü漢🙂", "n": 1.10}')]
    out, _ = process("show", ID, "--json", PYTHONIOENCODING="ascii").communicate(timeout=20)
    assert out == '{"id": "\\u00fc\\u6f22\\ud83d\\ude42", "n": 1.10}\n'
    server.script = [Answer(200, run("failed", last_error="ü漢🙂"))]
    child = process("show", ID, PYTHONIOENCODING="ascii")
    assert "error" in child.communicate(timeout=20)[0]
    assert child.returncode == 0


def test_process_exits_with_the_code(server: ScriptedServer, process: Process) -> None:
    server.script = [Answer(200, {"runs": [run()]}), Answer(409, {"detail": "Taken", "code": "not_claimable"})]
    poll = process("poll")
    out, err = poll.communicate(timeout=20)
    assert (poll.returncode, err) == (0, "")
    assert out.startswith(ID)
    claim = process("claim", ID, *S1)
    assert claim.communicate(timeout=20) == ("", "dispatcher-agent: Taken\n")
    assert claim.returncode == 2


def test_reader_that_goes_away_changes_nothing(server: ScriptedServer, process: Process) -> None:
    server.script = [Answer(200, {"runs": [run()] * 3000}, after=0.5)]
    child = process("poll")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.wait(timeout=20) == 0
    assert child.stderr.read() == ""
    child.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_said_without_traceback(server: ScriptedServer) -> None:
    server.script = [Answer(200, {"runs": []})]
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "workflows.client.cli", "poll", "--api", server.url],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=20,
        )
    assert (child.returncode, child.stderr) == (
        1,
        "dispatcher-agent: Can't write the output: No space left on device\n",
    )


def test_interrupt_is_quiet(server: ScriptedServer, process: Process) -> None:
    server.script = [Answer(200, {"runs": []}, after=0.8)]
    child = process("poll")
    until = time.monotonic() + 15
    while not server.received and time.monotonic() < until:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20) == ("", "")
    assert child.returncode == 130


def test_colours_are_for_terminals_and_no_color_takes_them_away(server: ScriptedServer) -> None:
    assert "\x1b[" in _on_a_terminal(server, NO_COLOR="")
    assert "\x1b[" not in _on_a_terminal(server, NO_COLOR="1")


def _on_a_terminal(server: ScriptedServer, **environment: str) -> str:
    server.script = [Answer(200, run("failed", last_error="[red]no markup[/red] of others"))]
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "workflows.client.cli", "show", ID, "--api", server.url],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", **environment},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    assert child.wait(timeout=20) == 0
    text = seen.decode()
    assert "[red]no markup[/red] of others" in text
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines())
    return text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: the other side has been closed
        return b""


UNWANTED = ("django", "rest_framework", "dispatcher_project", "rich", "click", "pygments", "psycopg")


def test_poll_loads_neither_django_nor_rich_nor_the_command_line_of_httpx(server: ScriptedServer) -> None:
    server.script = [Answer(200, {"runs": [run()]})]
    code = (
        "import sys; from workflows.client.cli import main; code = main(['poll']);"
        f"print(code, [name for name in {UNWANTED!r} if name in sys.modules], 'httpx' in sys.modules)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "DASHBOARD_API_BASE": server.url},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert child.stdout.splitlines()[-1] == "0 [] True"


def test_version_needs_no_http(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; from workflows.client.cli import main; main(['--version']); print('httpx' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    assert out.stdout.splitlines()[-1] == "False"


def test_httpx_stays_usable_for_others_in_the_process() -> None:
    code = (
        "import sys; from workflows.client.http import load_httpx; x = load_httpx(); import httpx;"
        "print(x is httpx, 'httpx._main' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    assert out.stdout.split() == ["True", "False"]


def test_server_that_answers_no_http_at_all(agent: Agent, naps: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        import threading

        def talk_nonsense() -> None:
            for _ in range(4):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"220 mail.example.org ESMTP\r\n")

        thread = threading.Thread(target=talk_nonsense)
        thread.start()
        result = agent("poll", "--api", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert result.code == 75
    assert "Traceback" not in result.err


def test_main_takes_its_arguments_from_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dispatcher-agent", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out.startswith("dispatcher-agent ")
